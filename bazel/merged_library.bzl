"""merged_library: a static library with everything in it that its users need, but for the system's libraries."""

def _merged_library(ctx):
    whole, searched = [], []
    for dep in ctx.attr.deps:
        for linker_input in dep[CcInfo].linking_context.linker_inputs.to_list():
            for library in linker_input.libraries:
                archive = library.static_library or library.pic_static_library
                if archive == None:
                    continue
                if library.alwayslink or linker_input.owner in [d.label for d in ctx.attr.deps]:
                    whole.append(archive)
                else:
                    searched.append(archive)

    # One object file in which only the public symbols are visible, so that internal names cannot
    # collide. Section groups that several files share (inline functions) become ordinary sections,
    # so that a program's own copies do not replace these.
    ctx.actions.run_shell(
        inputs = whole + searched,
        outputs = [ctx.outputs.out],
        command = """set -eu
          object=$1.o; out=$1; whole=$2; searched=$3
          ld -r --force-group-allocation -o "$object" --whole-archive $whole --no-whole-archive \
            --start-group $searched --end-group
          objcopy --wildcard {keep} "$object"
          rm -f "$out"
          ar rcsD "$out" "$object"
          rm "$object" """.format(keep = " ".join(["--keep-global-symbol='%s'" % s for s in ctx.attr.public_symbols])),
        arguments = [
            ctx.outputs.out.path,
            " ".join([f.path for f in whole]),
            " ".join([f.path for f in searched]),
        ],
        mnemonic = "MergeLibrary",
        progress_message = "Merging %s" % ctx.outputs.out.short_path,
    )
    return [DefaultInfo(files = depset([ctx.outputs.out]))]

merged_library = rule(
    implementation = _merged_library,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo], doc = "What is in it for sure; the rest as far as needed."),
        "out": attr.output(mandatory = True),
        "public_symbols": attr.string_list(mandatory = True, doc = "Patterns; all other symbols become local."),
    },
)
