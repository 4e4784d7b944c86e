// Greedy tokens by llama.cpp, as JSON: what it reads of a GGUF file, and of an adapter beside it.
//
//     SAMEBIT_NODE_LLAMA_CPP=FOLDER node scripts/check/llama_cpp.mjs MODEL.gguf ADAPTER.gguf|- IDS COUNT TEXT
//
// FOLDER holds node_modules with node-llama-cpp, whose package of prebuilt binaries needs no compiler:
//     npm install --prefix FOLDER --ignore-scripts --omit=optional node-llama-cpp@3.22.1 @node-llama-cpp/linux-x64@3.22.1
// Prints {"tokens": [COUNT greedy tokens after IDS], "encoded": [the ids of TEXT]}.

import { join } from "node:path";
import { pathToFileURL } from "node:url";

const folder = process.env.SAMEBIT_NODE_LLAMA_CPP;
const [modelPath, adapterPath, ids, count, text] = process.argv.slice(2);
const library = join(folder, "node_modules/node-llama-cpp/dist/index.js");
const { getLlama, LlamaLogLevel } = await import(pathToFileURL(library).href);

const llama = await getLlama({ gpu: false, build: "never", skipDownload: true, logLevel: LlamaLogLevel.error });
const model = await llama.loadModel({ modelPath });
const lora = adapterPath === "-" ? {} : { lora: { adapters: [{ filePath: adapterPath, scale: 1 }] } };
const context = await model.createContext({ contextSize: 512, threads: 2, ...lora });
const tokens = [];
for await (const token of context.getSequence().evaluate(ids.split(",").map(Number), { temperature: 0 })) {
    tokens.push(token);
    if (tokens.length === Number(count)) break;
}
console.log(JSON.stringify({ tokens, encoded: model.tokenize(text, false) }));
process.exit(0);
