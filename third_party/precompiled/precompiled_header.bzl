"""A header that the compiler reads once: precompiled_header."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    merged = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    context = merged.compilation_context

    # The compiler takes X.h.gch in place of X.h where it finds both in one folder.
    made = ctx.actions.declare_file("made/" + ctx.file.header.basename)
    compiled = ctx.actions.declare_file("made/" + ctx.file.header.basename + ".gch")
    dependencies = ctx.actions.declare_file("made/" + ctx.file.header.basename + ".d")
    ctx.actions.write(made, '#include "%s"\n' % ctx.file.header.short_path)
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = made.path,
        output_file = compiled.path,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts,
        quote_include_directories = context.quote_includes,
        include_directories = context.includes,
        system_include_directories = context.system_includes,
        preprocessor_defines = context.defines,
    )
    arguments = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = ACTION_NAMES.cpp_compile,
        variables = variables,
    )
    environment = cc_common.get_environment_variables(
        feature_configuration = features,
        action_name = ACTION_NAMES.cpp_compile,
        variables = variables,
    )
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = ACTION_NAMES.cpp_compile,
        ),
        # What is written to `dependencies`, the header keeps as well, for -fpch-deps of those who use it.
        arguments = ["-x", "c++-header", "-MD", "-MF", dependencies.path] + arguments,
        env = environment,
        inputs = depset([made, ctx.file.header], transitive = [context.headers, toolchain.all_files]),
        outputs = [compiled, dependencies],
        mnemonic = "PrecompileHeader",
        progress_message = "Precompiling %s" % ctx.file.header.short_path,
    )
    headers = cc_common.create_compilation_context(headers = depset([made, compiled]))
    return [
        DefaultInfo(files = depset([made, compiled])),
        cc_common.merge_cc_infos(cc_infos = [CcInfo(compilation_context = headers), merged]),
    ]

precompiled_header = rule(
    doc = """Precompiles `header` with the flags of this build. Whoever depends on it and compiles with
    `-include FOLDER/made/HEADER` begins with all that the header includes. The flags must be those of who uses it
    (`copts`: what is added to the build's own), or the compiler refuses it (-Winvalid-pch).""",
    implementation = _precompiled_header_impl,
    attrs = {
        "header": attr.label(allow_single_file = [".h"], mandatory = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "copts": attr.string_list(),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
