#!/bin/bash
# The import table of docs/architecture.md and the kernel table of kernels/README.md against the checkout, and no file
# that nothing includes or builds. Runs outside the sandbox, since all files are its input.
exec "$(readlink -f tools/check_style)" --only=imports,unused,kernels
