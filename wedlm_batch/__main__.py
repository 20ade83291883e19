"""The console script as a module: ``python -m wedlm_batch generate ...``."""

from wedlm_batch.console import main

if __name__ == "__main__":
    raise SystemExit(main())
