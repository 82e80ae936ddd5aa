#include "runtime/data/corpus.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/checksum.h"

namespace megascale::data {
namespace {

class CorpusTest : public ::testing::Test {
 protected:
  CorpusTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ = absl::StrCat(::testing::TempDir(), "/", info->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }

  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

  static job::v1::DataSpec Spec(const std::vector<std::string>& files, double held_out = 0) {
    job::v1::DataSpec spec;
    for (const std::string& file : files) spec.add_files(file);
    spec.set_held_out_fraction(held_out);
    return spec;
  }

  static std::string Text(const CorpusPart& part) {
    std::string text(static_cast<size_t>(part.size_bytes()), '\0');
    EXPECT_TRUE(
        part.Read(0, absl::MakeSpan(reinterpret_cast<uint8_t*>(text.data()), text.size())).ok());
    return text;
  }

  // The error names `path` and says `what`.
  static void ExpectRefused(const std::string& path, absl::StatusCode code,
                            absl::string_view what) {
    const auto corpus = Corpus::Open(Spec({path}), 2);
    EXPECT_EQ(corpus.status().code(), code) << corpus.status();
    EXPECT_TRUE(absl::StrContains(corpus.status().message(), path)) << corpus.status();
    EXPECT_TRUE(absl::StrContains(corpus.status().message(), what)) << corpus.status();
  }

  std::string directory_;
};

TEST_F(CorpusTest, FilesAreConcatenatedInTheirOrderAndTheEndIsHeldOut) {
  const auto corpus =
      Corpus::Open(Spec({Write("b", "01234"), Write("a", "56789abcde"), Write("c", "fghij")}, 0.25),
                   4)
          .value();
  EXPECT_EQ(Text(corpus->train()), "0123456789abcde");
  EXPECT_EQ(Text(corpus->held_out()), "fghij");
}

TEST_F(CorpusTest, ATenthIsHeldOutByDefault) {
  const auto corpus = Corpus::Open(Spec({Write("a", std::string(109, 'x'))}), 4).value();
  EXPECT_EQ(corpus->held_out().size_bytes(), 10);
  EXPECT_EQ(corpus->train().size_bytes(), 99);
}

TEST_F(CorpusTest, ReadsCrossTheBordersOfFiles) {
  const auto corpus =
      Corpus::Open(Spec({Write("a", "012"), Write("b", "3"), Write("c", "456789xy")}), 4).value();
  const std::string text = "0123456789xy";
  for (int64_t begin = 0; begin < 11; ++begin) {
    for (int64_t count = 0; begin + count <= 11; ++count) {
      std::string read(static_cast<size_t>(count), '\0');
      ASSERT_TRUE(
          corpus->train()
              .Read(begin, absl::MakeSpan(reinterpret_cast<uint8_t*>(read.data()), read.size()))
              .ok());
      ASSERT_EQ(read, text.substr(static_cast<size_t>(begin), static_cast<size_t>(count)));
    }
  }
}

TEST_F(CorpusTest, ADirectoryIsItsTextFilesSortedByName) {
  Write("b", "BBBB");
  Write("a", "AAAA");
  Write("a.dat", "index");
  Write("empty", "");
  std::filesystem::create_symlink("a", directory_ + "/a.u8");
  Write(".hidden", "hidden");
  std::filesystem::create_directory(directory_ + "/off");
  const auto corpus = Corpus::Open(Spec({directory_}, 0.5), 3).value();
  EXPECT_EQ(corpus->paths(), (std::vector<std::string>{directory_ + "/a", directory_ + "/b"}));
  EXPECT_EQ(Text(corpus->train()), "AAAA");
  EXPECT_EQ(Text(corpus->held_out()), "BBBB");
  EXPECT_EQ(corpus->folders(), std::vector<std::string>{absl::StrCat(
                                   "data.files: ", directory_,
                                   ": 2 files, 8 bytes; left out: 1 hidden, 1 *.dat, 1 empty, "
                                   "1 further name of the same")});
}

TEST_F(CorpusTest, MoreFilesThanMayStayOpenAreReadAllTheSame) {
  std::string text;
  for (int i = 0; i < 300; ++i) {
    Write(absl::StrCat("file", 1000 + i), absl::StrCat(i, "\n"));
    absl::StrAppend(&text, i, "\n");
  }
  const auto corpus = Corpus::Open(Spec({directory_}, 0.01), 4).value();
  EXPECT_EQ(Text(corpus->train()) + Text(corpus->held_out()), text);
}

TEST_F(CorpusTest, WhatIsNoTextIsRefusedByNameAndReason) {
  ExpectRefused(directory_ + "/none", absl::StatusCode::kNotFound,
                absl::StrCat("No such file or directory; expected a file that user ", ::geteuid(),
                             " can read on every machine of the job"));
  ExpectRefused(Write("empty", ""), absl::StatusCode::kInvalidArgument, "is empty");
  ExpectRefused(Write("short", "ab"), absl::StatusCode::kInvalidArgument, "seq_length + 1 = 3");
  const std::string fifo = directory_ + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  ExpectRefused(fifo, absl::StatusCode::kInvalidArgument,
                "is a FIFO; expected a regular file, which can be read again at any place");
  ExpectRefused("/dev/zero", absl::StatusCode::kInvalidArgument, "is a device; expected");
  const std::string bare = directory_ + "/bare";
  std::filesystem::create_directory(bare);
  std::ofstream(bare + "/index.dat") << "x";
  ExpectRefused(bare, absl::StatusCode::kInvalidArgument, "has no text file");
  EXPECT_EQ(Corpus::Open(Spec({}), 2).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Corpus::Open(Spec({Write("a", "0123456789")}, 1.0), 2).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CorpusTest, ASocketIsRefusedByItsKind) {
  char directory[] = "/tmp/ms-XXXXXX";  // short: a socket's path has 107 bytes
  ASSERT_NE(::mkdtemp(directory), nullptr);
  const std::string path = absl::StrCat(directory, "/socket");
  const base::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ExpectRefused(path, absl::StatusCode::kInvalidArgument, "is a socket; expected a regular file");
  std::filesystem::remove_all(directory);
}

TEST_F(CorpusTest, BinaryFilesAreWarnedOfAndTextIsNot) {
  const std::string text = Write("text", "0123456789 \xc3\xa4 \x7f");
  const std::string binary = Write("binary", std::string("01234\0\0789", 10));
  const std::string packed = Write("packed", "\x1F\x8B\x08 and so on");
  const std::string pointer = Write("pointer", "version https://git-lfs.github.com/spec/v1\n");
  const auto warnings =
      Corpus::Open(Spec({text, binary, packed, pointer}), 2).value()->WarningsOfBinary().value();
  ASSERT_EQ(warnings.size(), 3u);
  EXPECT_TRUE(absl::StrContains(warnings[1], "is packed by gzip or zstd; it is unpacked for a "));
  EXPECT_TRUE(absl::StrContains(warnings[2], "is a Git LFS pointer, which stands for the file"));
  EXPECT_EQ(warnings[0], absl::StrCat("data.files: ", binary,
                                      ": byte 5 is NUL, as in binary files; every byte is a token, "
                                      "so it is trained on as it is"));
}

TEST_F(CorpusTest, AnUnreadableFileIsPermissionDenied) {
  const std::string path = Write("secret", "0123456789");
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  const bool is_root = ::geteuid() == 0;
  if (is_root && ::seteuid(65534) != 0) GTEST_SKIP() << "root here, and cannot be anybody else";
  const auto corpus = Corpus::Open(Spec({path}), 2);
  if (is_root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  EXPECT_EQ(corpus.status().code(), absl::StatusCode::kPermissionDenied) << corpus.status();
}

TEST_F(CorpusTest, AFileThatShrinksLaterIsDataLoss) {
  const std::string path = Write("a", std::string(100, 'x'));
  const auto corpus = Corpus::Open(Spec({path}), 4).value();
  std::filesystem::resize_file(path, 10);
  uint8_t bytes[20];
  const absl::Status status = corpus->train().Read(5, bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(status.message(), path)) << status;
}

TEST_F(CorpusTest, TheFingerprintHasEveryFilesHashAndTheSplit) {
  const auto corpus =
      Corpus::Open(Spec({Write("a", "0123456789"), Write("b", "abcdefghij")}), 4).value();
  const auto fingerprint = corpus->Fingerprint().value();
  ASSERT_EQ(fingerprint.file_sha256_size(), 2);
  EXPECT_EQ(fingerprint.file_sha256(0), base::Sha256Hex("0123456789"));
  EXPECT_EQ(fingerprint.file_sha256(1), base::Sha256Hex("abcdefghij"));
  EXPECT_EQ(fingerprint.total_bytes(), 20);
  EXPECT_EQ(fingerprint.held_out_bytes(), 2);
  EXPECT_EQ(fingerprint.tokenizer(), "bytes");
}

}  // namespace
}  // namespace megascale::data
