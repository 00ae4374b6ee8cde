"""`python -m pickmix`."""

from pickmix.cli import main

if __name__ == "__main__":
    main(prog_name="pickmix")
