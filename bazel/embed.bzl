"""embed_text: a text file as a part of the program."""

def embed_text(name, src, visibility = ["//visibility:private"]):
    """NAME.inc: the file as a C++ string literal, to be included where a string stands.

    constexpr std::string_view kText =
    #include "folder/name.inc"
        ;
    """
    native.genrule(
        name = name,
        srcs = [src],
        outs = [name + ".inc"],
        cmd = "{ printf 'R\"EMBEDDED('; cat $<; printf ')EMBEDDED\"\\n'; } >$@",
        visibility = visibility,
    )
