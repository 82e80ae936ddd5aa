# Sourced. Builds targets of a commit in a work tree of its own, $commit_tree, which goes when the script ends:
# build_commit COMMIT TARGET…
build_commit() {
  local commit=$1 folder
  shift
  folder=$(mktemp -d)
  commit_tree=$folder/tree
  # shellcheck disable=SC2064
  trap "bazel --output_base='$folder/out' shutdown; git worktree remove --force '$folder/tree'
    chmod -R u+w '$folder'; rm -rf '$folder'" EXIT
  git worktree add --quiet --detach "$commit_tree" "$commit"
  (cd "$commit_tree" && bazel --output_base="$folder/out" build "$@")
}

# Builds the program of the release before this one, $previous_program, in the same way.
build_previous_program() {
  build_commit "$(grep -v '^#' tests/versions/PREVIOUS)" //cli:megascale
  previous_program=$commit_tree/bazel-bin/cli/megascale
}
