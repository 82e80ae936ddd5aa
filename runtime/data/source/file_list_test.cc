#include "runtime/data/source/file_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace megascale::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

class FileListTest : public ::testing::Test {
 protected:
  FileListTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = absl::StrCat(::testing::TempDir(), "/list_", info->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  std::string Write(const std::string& name, const std::string& content) const {
    const std::string path = absl::StrCat(folder_, "/", name);
    fs::create_directories(fs::path(path).parent_path());
    EXPECT_TRUE(base::WriteFileDurably(path, content).ok());
    return path;
  }

  std::string folder_;
};

TEST_F(FileListTest, AFileStandsForItself) {
  const FileList list = ListFiles("/no/such/file").value();
  EXPECT_THAT(list.files, ElementsAre("/no/such/file"));
  EXPECT_EQ(list.Line("/no/such/file"), "");
}

TEST_F(FileListTest, AFolderStandsForItsFilesAndThoseOfItsSubFoldersByPath) {
  const std::string b = Write("b.txt", "bb");
  const std::string a = Write("a.txt", "a");
  const std::string deep = Write("a/z/deep", "123");
  const std::string sub = Write("a/b", "12");
  const FileList list = ListFiles(folder_).value();
  EXPECT_THAT(list.files, ElementsAre(a, sub, deep, b));
  EXPECT_EQ(list.Line(folder_), folder_ + ": 4 files, 8 bytes");
  EXPECT_EQ(ListFiles(folder_ + "/a/z/").value().Line("z"), "z: 1 file, 3 bytes");
}

TEST_F(FileListTest, WhatIsLeftOutIsCountedByItsKind) {
  const std::string a = Write("a", "text");
  Write(".part-00000.crc", "crc");
  Write(".git/config", "never looked at");
  Write("_SUCCESS", "");
  Write("fortunes.dat", "index");
  ASSERT_EQ(::mkfifo((folder_ + "/fifo").c_str(), 0600), 0);
  fs::create_symlink("a", folder_ + "/a.u8");
  fs::create_hard_link(a, folder_ + "/z");
  const FileList list = ListFiles(folder_).value();
  EXPECT_THAT(list.files, ElementsAre(a));
  EXPECT_EQ(list.LeftOut(),
            "2 hidden, 1 *.dat, 1 empty, 1 neither file nor folder, 2 further names of the same");
  EXPECT_THAT(list.Line("F"), HasSubstr("F: 1 file, 4 bytes; left out: 2 hidden, "));
}

// As in the cache of huggingface_hub, whose snapshots are links to files elsewhere.
TEST_F(FileListTest, SymbolicLinksToFilesAndFoldersAreFollowed) {
  const std::string away = Write("away/blob", "12345");
  Write("away/more/text", "123");
  fs::create_directories(folder_ + "/data");
  fs::create_symlink(away, folder_ + "/data/file.txt");
  fs::create_directory_symlink("../away/more", folder_ + "/data/more");
  EXPECT_THAT(ListFiles(folder_ + "/data").value().files,
              ElementsAre(folder_ + "/data/file.txt", folder_ + "/data/more/text"));
  fs::create_directory_symlink("data", folder_ + "/link");
  EXPECT_EQ(ListFiles(folder_ + "/link").value().files.size(), 2u);
  const FileList all = ListFiles(folder_).value();
  EXPECT_THAT(all.files, ElementsAre(away, folder_ + "/away/more/text"));
  EXPECT_EQ(all.LeftOut(), "3 further names of the same");
}

TEST_F(FileListTest, ALinkBackToAFolderAboveAndALinkToNothingAreRefused) {
  Write("a/b/text", "text");
  fs::create_directory_symlink("..", folder_ + "/a/b/up");
  const absl::Status cycle = ListFiles(folder_).status();
  EXPECT_EQ(cycle.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cycle.message(), folder_ +
                                 "/a/b/up: leads back to a folder that it is in; expected "
                                 "folders without a cycle");
  fs::remove(folder_ + "/a/b/up");
  fs::create_symlink("nothing", folder_ + "/a/dangling");
  EXPECT_THAT(std::string(ListFiles(folder_).status().message()),
              HasSubstr("/a/dangling: a symbolic link that leads nowhere: No such file"));
  fs::remove(folder_ + "/a/dangling");
  fs::create_symlink("self", folder_ + "/a/self");
  EXPECT_FALSE(ListFiles(folder_).ok());
}

TEST_F(FileListTest, AFolderWithoutTextIsRefusedWithWhatItHas) {
  Write("sub/.hidden", "h");
  const absl::Status empty = ListFiles(folder_).status();
  EXPECT_EQ(empty.message(), folder_ + ": is a folder that has no text file (left out: 1 hidden)");
  EXPECT_EQ(base::ErrnoOf(empty), ENOENT) << "nothing may be mounted there";
}

// Folders that link to each other's neighbours have exponentially many paths.
TEST_F(FileListTest, AFolderIsReadOnceHoweverManyLinksLeadToIt) {
  const std::string text = Write("d0/text", "text");
  for (int i = 1; i <= 40; ++i) {
    fs::create_directories(absl::StrCat(folder_, "/d", i));
    for (const char* link : {"one", "two"}) {
      fs::create_directory_symlink(absl::StrCat("../d", i - 1),
                                   absl::StrCat(folder_, "/d", i, "/", link));
    }
  }
  const FileList list = ListFiles(folder_).value();
  EXPECT_THAT(list.files, ElementsAre(text));
  EXPECT_EQ(list.num_repeated, 80);
}

}  // namespace
}  // namespace megascale::data
