#!/usr/bin/env python3
"""The cases of boxes_test.py with Open MPI 5.0, whose mpirun NVLLM_OPENMPI5 names (tools/fetch-openmpi prints it)."""
import os
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent / folder) for folder in ('.', 'testing')]
os.environ['NVLLM_MPIRUN'] = os.environ.get('NVLLM_OPENMPI5', '')
import boxes as two  # noqa: E402
import boxes_test  # noqa: E402

if __name__ == '__main__':
    two.skip('' if os.environ['NVLLM_MPIRUN'] else 'needs Open MPI 5.0 of tools/fetch-openmpi (NVLLM_OPENMPI5)')
    boxes_test.main()
