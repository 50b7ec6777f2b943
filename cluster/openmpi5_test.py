#!/usr/bin/env python3
"""Cases of boxes_test.py with Open MPI 5.0, whose mpirun NVLLM_OPENMPI5 names (tools/fetch-openmpi prints it).

Those that showed differences from 4.1, or would. All of them: NVLLM_MPIRUN=$(tools/fetch-openmpi) cluster/boxes_test.py.
"""
import os
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent / folder) for folder in ('.', 'testing')]
os.environ['NVLLM_MPIRUN'] = os.environ.get('NVLLM_OPENMPI5', '')
import boxes as two  # noqa: E402
import boxes_test  # noqa: E402

CASES = ['two_and_three_ranks', 'calls_and_collectives', 'no_keepalive', 'worker_of_the_other_box_is_killed',
         'a_launcher_is_killed', 'test_mpirun_is_killed', 'the_daemon_of_mpirun', 'a_signal_to_the_first_box']

if __name__ == '__main__':
    two.skip('' if os.environ['NVLLM_MPIRUN'] else 'needs Open MPI 5.0 of tools/fetch-openmpi (NVLLM_OPENMPI5)')
    boxes_test.main(CASES)
