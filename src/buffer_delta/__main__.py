"""`python -m buffer_delta …` is `buffer-delta …`."""

from buffer_delta.cli import main

if __name__ == "__main__":
    main()
