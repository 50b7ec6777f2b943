#!/bin/bash
# tools/release_files/pack with mocks of the program and of objdump: the contents of the packages,
# and that the same program gives the same bytes. tools/test_release installs the real ones.
source tests/shell_cases.sh
files=$PWD/tools/release_files

# Leaves the caller in a fresh checkout with the files of releases, packed into `out`.
make_release() {
  place=$(mktemp -d "${TEST_TMPDIR:-/tmp}/release.XXXXXX")
  cd "$place"
  mkdir -p bin tools python/nvllm/__pycache__
  cp -rL "$files" tools/release_files
  echo 'Install: see below' >README.md
  echo '0.2.0' >CHANGELOG.md
  echo '"""A stub."""' >python/nvllm/__init__.py
  echo 'import os' >python/nvllm/run_program.py
  : >python/nvllm/__pycache__/old.pyc
  cat >program <<'PROGRAM'
#!/bin/bash
case "$*" in
  'completion '*) echo "# completion for $2" ;;
  --help=man) printf '.SH COMMANDS\n.TP\n\\fBserve\\fR\nserves\n.TP\n\\fBbench latency\\fR\nmeasures\n.SH EXIT CODES\n' ;;
  *--help=man) echo ".TH page of $*" ;;
  *) echo "ran $*" ;;
esac
PROGRAM
  printf '#!/bin/sh\necho "a GLIBC_2.2.5 b"; echo "c GLIBC_2.35 d"; echo "e GLIBCXX_3.4.30 f"\n' >bin/objdump
  chmod +x program bin/objdump
  export PATH=$place/bin:$PATH SOURCE_DATE_EPOCH=1700000000
  tools/release_files/pack program 9.8.7 out
}

case_the_debian_package_asks_for_the_c_and_the_cpp_library_alone() {
  make_release
  [[ $(dpkg-deb -f out/nvllm_9.8.7_amd64.deb Depends) == 'libc6 (>= 2.35), libstdc++6 (>= 12)' ]]
  [[ $(dpkg-deb -f out/nvllm_9.8.7_amd64.deb Version) == 9.8.7 ]]
}

case_a_program_for_an_unknown_library_is_refused() {
  make_release
  echo 'echo "e GLIBCXX_3.4.99 f"' >>bin/objdump
  refused tools/release_files/pack program 9.8.7 out2
}

case_the_debian_package_holds_program_pages_completions_service_and_configuration() {
  make_release
  dpkg-deb -c out/nvllm_9.8.7_amd64.deb >list
  for path in usr/bin/nvllm-launch usr/lib/systemd/system/nvllm.service etc/nvllm/serve.json \
    usr/share/man/man1/nvllm-launch{,-serve,-bench-latency}.1.gz usr/share/fish/vendor_completions.d/nvllm-launch.fish \
    usr/share/bash-completion/completions/nvllm-launch usr/share/zsh/vendor-completions/_nvllm-launch; do
    grep -q " ./$path\$" list
  done
  grep -q '^-rwxr-xr-x root/root .* ./usr/bin/nvllm-launch$' list
  grep -q '^-rw------- root/root .* ./etc/nvllm/serve.env$' list
  dpkg-deb -x out/nvllm_9.8.7_amd64.deb tree
  [[ $(zcat tree/usr/share/man/man1/nvllm-launch-bench-latency.1.gz) == '.TH page of bench latency --help=man' ]]
  [[ $(<tree/usr/share/zsh/vendor-completions/_nvllm-launch) == '# completion for zsh' ]]
  dpkg-deb -e out/nvllm_9.8.7_amd64.deb control
  grep -qx /etc/nvllm/serve.env control/conffiles
  (cd tree && md5sum --quiet -c ../control/md5sums)
}

case_the_tarball_has_one_folder() {
  make_release
  [[ $(tar -tf out/nvllm-9.8.7-linux-x86_64.tar.xz | cut -d/ -f1 | sort -u) == nvllm-9.8.7-linux-x86_64 ]]
  tar -xf out/nvllm-9.8.7-linux-x86_64.tar.xz
  [[ $(nvllm-9.8.7-linux-x86_64/bin/nvllm-launch hello) == 'ran hello' ]]
}

case_the_wheel_is_whole_and_its_record_is_right() {
  make_release
  python3 - out/nvllm-9.8.7-py3-none-linux_x86_64.whl <<'PYTHON'
import base64, csv, hashlib, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
assert wheel.testzip() is None
rows = list(csv.reader(wheel.read('nvllm-9.8.7.dist-info/RECORD').decode().splitlines()))
assert sorted(row[0] for row in rows) == sorted(wheel.namelist()), rows
for name, digest, size in rows:
    if name.endswith('/RECORD'):
        assert (digest, size) == ('', '')
        continue
    data = wheel.read(name)
    found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()
    assert (digest, size) == ('sha256=' + found, str(len(data))), name
assert wheel.getinfo('nvllm/bin/nvllm-launch').external_attr >> 16 == 0o100755
assert wheel.getinfo('nvllm/__init__.py').external_attr >> 16 == 0o100644
assert not [name for name in wheel.namelist() if '__pycache__' in name]
assert b'nvllm-launch = nvllm.run_program:main' in wheel.read('nvllm-9.8.7.dist-info/entry_points.txt')
assert b'\nName: nvllm\nVersion: 9.8.7\n' in wheel.read('nvllm-9.8.7.dist-info/METADATA')
PYTHON
}

case_the_same_program_gives_the_same_bytes() {
  make_release
  sleep 1.1  # another second
  touch python/nvllm/__init__.py program
  (umask 077 && tools/release_files/pack program 9.8.7 again)
  diff -r out again
}

case_the_containerfile_names_the_debian_package() {
  make_release
  grep -q nvllm_9.8.7_amd64.deb out/Containerfile
  refused grep -q @ out/Containerfile
}

run_cases
