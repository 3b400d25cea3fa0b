"""The command `ds_report`: what this machine has, by `capstan report`."""

import sys

from capstan import program


def main():
    program.run("report", *sys.argv[1:])


if __name__ == "__main__":
    main()
