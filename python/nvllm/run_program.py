"""The command nvllm-launch of the wheel: becomes the program that lies in the package."""

import os
import pathlib
import sys

PROGRAM = pathlib.Path(__file__).resolve().parent / 'bin' / 'nvllm-launch'


def main():
    try:
        os.execv(PROGRAM, ['nvllm-launch', *sys.argv[1:]])
    except OSError as error:
        sys.exit(f'nvllm-launch: {PROGRAM}: {error.strerror}; install the wheel of nvllm again')
