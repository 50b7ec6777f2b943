"""Finds nvllm-launch, the program that does the work."""

import os
import shutil
from pathlib import Path

from .errors import StartError

PACKAGE = Path(__file__).resolve().parent


def find_program():
    """Its path: $NVLLM_LAUNCH, beside this package, in the checkout around it, or on the PATH."""
    named = os.environ.get('NVLLM_LAUNCH')
    if named:
        path = shutil.which(named)
        if path is None:
            raise StartError(f'NVLLM_LAUNCH={named}: no program is there; set it to the path of nvllm-launch, or unset '
                             'it')
        return os.path.abspath(path)
    checkout = PACKAGE.parent.parent
    for path in (PACKAGE / 'bin' / 'nvllm-launch', checkout / 'build' / 'bin' / 'launcher' / 'nvllm-launch'):
        if os.access(path, os.X_OK) and path.is_file():
            return str(path)
    found = shutil.which('nvllm-launch')
    if found:
        return os.path.abspath(found)
    is_checkout = (checkout / 'launcher' / 'main.cc').exists()
    fix = f'build it with {checkout}/nvllm-launch --version' if is_checkout else (
        'install the wheel of nvllm, or set NVLLM_LAUNCH to the path of nvllm-launch')
    raise StartError(f'nvllm-launch, the program that runs models, is neither in {PACKAGE / "bin"} nor on the PATH; '
                     f'{fix}')
