"""Loads a checkpoint folder with transformers and prints the log-probs of given ids as JSON.

    python3 scripts/check/transformers_loads.py FOLDER --ids 1,2,3 [--logits]

Exits 1 where transformers finds a key missing, unexpected or of another shape.
"""

import scoring


def main():
    parser = scoring.parser(__doc__)
    parser.add_argument("folder", help="a Hugging Face checkpoint folder")
    args = parser.parse_args()
    scoring.report(scoring.load_base(args.folder), args)


if __name__ == "__main__":
    main()
