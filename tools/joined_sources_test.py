#!/usr/bin/env python3
"""What joined_sources.py reads from sources, and the groups that it makes."""

import unittest

import joined_sources


def in_unnamed(body, namespace="a"):
    return f"namespace {namespace} {{\nnamespace {{\n{body}\n}}  // namespace\n}}  // namespace {namespace}\n"


class JoinedSourcesTest(unittest.TestCase):
    def clashes(self, first, second, namespace="a"):
        texts = {"x/first.cc": in_unnamed(first), "x/second.cc": in_unnamed(second, namespace)}
        return [name for _, _, name in joined_sources.clashes(texts)]

    def test_finds_a_name_that_two_sources_define(self):
        for first, second, name in [
            ("constexpr int kMax = 3;", "constexpr double kMax = 2.0 / 3;", "kMax"),
            ("constexpr char kMagic[] = {'M'};", "constexpr absl::string_view kMagic(\"M\", 1);", "kMagic"),
            ("absl::Duration Now() { return {}; }", "absl::Duration Now() { return {}; }", "Now"),
            ("void F(const A& a, int n) { if (n) {} }", "int F(const A& other, int m);", "F"),
            ("struct Verb {\n  int x;\n};", "using Verb = int (*)(int);", "Verb"),
            ("template <typename T>\nsize_t BytesOf(const T& t) { return 1; }",
             "template <typename T>\nsize_t BytesOf(const T& tensor) { return 2; }", "BytesOf"),
            ("namespace pb = b::v1;", "namespace pb = c::v1;", "pb"),
            ("using Json = nlohmann::json;", "using Json = nlohmann::ordered_json;", "Json"),
            ("using b::Matrix;", "using c::Matrix;", "Matrix"),
            ("class Builder final : public Base {};", "class Builder {};", "Builder"),
            ("std::atomic<int> the_count = 0;", "int the_count;", "the_count"),
        ]:
            self.assertEqual(self.clashes(first, second), [name], first)

    def test_finds_a_name_that_another_source_hides(self):
        for first, second, name in [
            ("namespace control = b::control::v1;", "void F(control::v1::Job* job) {}", "control"),
            ("bool HasFailed(const A& a) { return true; }", "}\nbool HasFailed(const B& b) { return true; }\nnamespace {",
             "HasFailed"),
        ]:
            self.assertEqual(self.clashes(first, second), [name], first)

    def test_leaves_alone_what_may_stand_together(self):
        for first, second in [
            ("void F(const A& a) {}", "void F(const B& a) {}"),
            ("void F(int n) {}", "void F(int n, int m) {}"),
            ("using b::Matrix;\nnamespace pb = b::v1;", "using b::Matrix;\nnamespace pb = b::v1;"),
            ("// constexpr int kMax = 1;\nint F() { constexpr int kMax = 2; return kMax; }", "constexpr int kMax = 3;"),
            ("const char kText[] = \"struct Verb {\";", "struct Verb {};"),
            ("#define MACRO(x) \\\n  struct x {};", "struct x {};"),
            ("}\nvoid F(const A& a) {}\nnamespace {", "}\nvoid F(const B& b) {}\nnamespace {"),
            ("namespace control = b::control::v1;", "void F(b::control::v1::Job* job) {}"),
            ("static_assert(sizeof(int) == 4);", "static_assert(sizeof(int) == 4);"),
        ]:
            self.assertEqual(self.clashes(first, second), [], first)
        self.assertEqual(self.clashes("int kMax;", "int kMax;", namespace="b"), [])

    def test_finds_a_type_of_a_header_that_a_source_hides(self):
        headers = {"y/event.h": "namespace a {\nusing Event = v1::Event;\nstruct Other {};\n}  // namespace a\n"}
        texts = {"x/first.cc": in_unnamed("using b::Event;"), "x/second.cc": in_unnamed("struct Other {};", "b"),
                 "x/third.cc": in_unnamed("Event F(Other other) { return Event(); }")}
        self.assertEqual(list(joined_sources.hidden_types(texts, headers)), [("x/first.cc", "y/event.h", "Event")])

    def test_groups_folders_that_do_not_clash(self):
        one = in_unnamed("constexpr int kMax = 3;")
        texts = {"a/1.cc": one, "a/2.cc": "", "b/1.cc": "", "c/1.cc": one, "c/2.cc": "", "a/main.cc": "int main() {}"}
        self.assertEqual(joined_sources.groups(texts), [["a/1.cc", "a/2.cc", "b/1.cc"], ["c/1.cc", "c/2.cc"], ["a/main.cc"]])

    def test_divides_a_large_folder(self):
        texts = {f"a/{i:02}.cc": "" for i in range(joined_sources.GROUP_MAX + 1)}
        self.assertEqual([len(group) for group in joined_sources.groups(texts)], [joined_sources.GROUP_MAX, 1])


if __name__ == "__main__":
    unittest.main()
