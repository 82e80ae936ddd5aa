// The fuzzer as a program; see README.md. With files it runs only these inputs.
//   fuzz [--seconds N] [--seed N] [--corpus DIR] [TARGET [FILE…]]
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/process/resource_limit.h"
#include "tests/fuzz/engine.h"

namespace megascale::fuzz {
namespace {

struct Arguments {
  int64_t seconds = 60;
  uint64_t seed = static_cast<uint64_t>(::getpid());
  std::string corpus = "tests/fuzz/corpus";
  std::vector<std::string> words;  // target, files
};

[[noreturn]] void Usage(const std::string& what) {
  std::fprintf(stderr, "fuzz: %s\n  usage: fuzz [--seconds N] [--seed N] [--corpus DIR] [TARGET",
               what.c_str());
  std::fprintf(stderr, " [FILE...]]; targets:");
  for (const Target& target : Targets()) std::fprintf(stderr, " %s", target.name.c_str());
  std::fprintf(stderr, "\n");
  std::exit(2);
}

Arguments Parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = word == "--seconds" || word == "--seed" || word == "--corpus";
    if (!has_value) {
      if (word.rfind("--", 0) == 0) Usage(absl::StrCat("unknown option ", word));
      arguments.words.push_back(word);
      continue;
    }
    if (++i == argc) Usage(absl::StrCat(word, " expects a value"));
    const bool good = word == "--corpus"    ? !(arguments.corpus = argv[i]).empty()
                      : word == "--seconds" ? absl::SimpleAtoi(argv[i], &arguments.seconds)
                                            : absl::SimpleAtoi(argv[i], &arguments.seed);
    if (!good) Usage(absl::StrCat(word, " expects a whole number, found ", argv[i]));
  }
  return arguments;
}

int FuzzTarget(const Target& target, const Arguments& arguments) {
  const auto corpus = ReadCorpus(absl::StrCat(arguments.corpus, "/", target.name));
  if (!corpus.ok()) Usage(std::string(corpus.status().message()));
  FuzzOptions options;
  options.seed = arguments.seed;
  options.time_max = absl::Seconds(arguments.seconds);
  std::printf("%-12s seed %llu, %zu inputs\n", target.name.c_str(),
              static_cast<unsigned long long>(options.seed), corpus->size());
  std::fflush(stdout);
  const FuzzStatistics statistics = Fuzz(target, *corpus, options);
  std::printf(
      "%-12s %lld executions in %.1f s (%.0f/s), the longest %.1f ms, memory at most %s\n",
      target.name.c_str(), static_cast<long long>(statistics.num_executions),
      absl::ToDoubleSeconds(statistics.time),
      static_cast<double>(statistics.num_executions) / absl::ToDoubleSeconds(statistics.time),
      absl::ToDoubleMilliseconds(statistics.longest),
      base::FormatBytes(statistics.peak_bytes).c_str());
  std::fflush(stdout);
  return 0;
}

int Main(int argc, char** argv) {
  const Arguments arguments = Parse(argc, argv);
  if (arguments.words.empty()) {
    for (const Target& target : Targets()) FuzzTarget(target, arguments);
    return 0;
  }
  const Target* target = FindTarget(arguments.words[0]);
  if (target == nullptr) Usage(absl::StrCat("no target ", arguments.words[0]));
  if (arguments.words.size() == 1) return FuzzTarget(*target, arguments);
  for (size_t i = 1; i < arguments.words.size(); ++i) {
    std::ifstream file(arguments.words[i], std::ios::binary);
    if (!file) Usage(absl::StrCat("cannot read ", arguments.words[i]));
    const std::string input{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    RunOne(*target, input, {});
    std::printf("%s: returns\n", arguments.words[i].c_str());
  }
  return 0;
}

}  // namespace
}  // namespace megascale::fuzz

int main(int argc, char** argv) { return megascale::fuzz::Main(argc, argv); }
