#!/bin/bash
# Prepares the chat page for the program: embed.sh INDEX_HTML OUT_HTML OUT_CSP OUT_INC
#
# OUT_HTML: the page without indentation, comment lines, and spaces in the style. OUT_CSP: its
# Content-Security-Policy, which allows the page's script and style by their hashes. OUT_INC: all of
# this as C++, for page.cc. It uses only tools available on every Debian system, since the page is
# generated wherever the program is built.
set -euo pipefail
source=$1 html=$2 policy=$3 inc=$4

# Works line by line, so no text of the page may span several lines if its indentation matters.
sed -E -e 's/^[[:space:]]+//; /^\/\/ /d; /^\/\*.*\*\/$/d; /^<!-- .* -->$/d; /^$/d' \
  -e '/^<style>$/,/^<\/style>$/{s/ *([{};]) */\1/g; s/([:,]) +/\1/g}' "$source" >"$html"

# The hash of an element's text: what is between its tags, each of which has a line of its own.
hash_of() {  # TAG
  [[ $(grep -c "^<$1>\$" "$html") == 1 ]] || { echo "embed.sh: $source needs one line <$1>" >&2; exit 1; }
  local hex
  hex=$({ echo; sed -n "/^<$1>\$/,/^<\/$1>\$/{//!p}" "$html"; } | sha256sum | cut -c 1-64)
  printf "sha256-%s" "$(printf "$(sed 's/../\\x&/g' <<<"$hex")" | base64)"
}
script=$(hash_of script) style=$(hash_of style)
printf '%s' "default-src 'none'; script-src '$script'; style-src '$style'; connect-src 'self'; img-src 'self' data:;" \
  " base-uri 'none'; form-action 'none'; frame-ancestors 'none'" >"$policy"

bytes() {  # NAME: standard input as an array
  echo "constexpr unsigned char $1[] = {"
  od -An -v -tx1 | sed 's/ \(..\)/0x\1,/g'
  echo "};"
}
{
  bytes kHtml <"$html"
  gzip -9n <"$html" | bytes kGzip
  echo "constexpr std::string_view kEtag = R\"(\"$(sha256sum "$html" | cut -c 1-32)\")\";"
  echo "constexpr std::string_view kPolicy ="
  echo "    R\"($(cat "$policy"))\";"
} >"$inc"
