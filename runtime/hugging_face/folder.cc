#include "runtime/hugging_face/folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/base/status.h"
#include "runtime/base/text/content_kind.h"
#include "runtime/base/text/json_nesting.h"
#include "runtime/base/text/printable.h"
#include "runtime/checkpoint/format/safetensors.h"
#include "runtime/hugging_face/config/json_fields.h"
#include "runtime/hugging_face/kept_files.h"

namespace megascale::hugging_face {
namespace {

using Json = nlohmann::json;

constexpr size_t kIndexBytesMax = 64 << 20;

bool IsNameInFolder(const std::string& name) {
  return !name.empty() && name[0] != '.' && !absl::StrContains(name, "/") &&
         !absl::StrContains(name, std::string(1, '\0')) && absl::EndsWith(name, ".safetensors");
}

absl::Status ReadAt(int fd, int64_t offset, absl::Span<char> out, const std::string& path) {
  while (!out.empty()) {
    const ssize_t count = ::pread(fd, out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return base::ErrnoStatus(errno, path);
    if (count == 0) {
      return absl::DataLossError(
          absl::StrCat(path, ": ends at byte ", offset, "; it was cut, fetch it again"));
    }
    out.remove_prefix(static_cast<size_t>(count));
    offset += count;
  }
  return absl::OkStatus();
}

// Other weights that a folder may have instead, and what to do with them.
constexpr std::pair<absl::string_view, absl::string_view> kOtherWeights[] = {
    {"adapter_model.safetensors", "an adapter of PEFT; merge it into its model and save that"},
    {"pytorch_model.bin", "save the model as safetensors"},
    {"pytorch_model.bin.index.json", "save the model as safetensors"},
    {"consolidated.safetensors", "weights under other names; expected those of `transformers`"},
    {"consolidated.00.pth", "weights under other names; expected those of `transformers`"},
    {"tf_model.h5", "save the model as safetensors"},
    {"flax_model.msgpack", "save the model as safetensors"},
};

std::string OtherWeightsIn(const std::string& path) {
  for (const auto& [name, what] : kOtherWeights) {
    if (Exists(path, name)) return absl::StrCat("; it has ", name, ": ", what);
  }
  return "";
}

// Says what the file is if it is no file of safetensors at all.
absl::Status NameContent(int fd, const std::string& path, const absl::Status& wrong) {
  std::string head(base::kContentKindBytes, '\0');
  const ssize_t count = ::pread(fd, head.data(), head.size(), 0);
  if (count <= 0) return wrong;
  head.resize(static_cast<size_t>(count));
  std::string what = base::WhatItIs(head);
  if (what.empty() && head[0] == '{') {
    what = "is JSON, such as a server's message of an error; fetch the file again";
  }
  return what.empty() ? wrong : absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

absl::StatusOr<checkpoint::SafetensorsHeader> ReadHeader(int fd, const std::string& path) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return base::ErrnoStatus(errno, path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is no regular file"));
  }
  const int64_t size = info.st_size;
  std::string start(static_cast<size_t>(std::min(checkpoint::kHeaderLengthBytes, size)), '\0');
  RETURN_IF_ERROR(ReadAt(fd, 0, absl::MakeSpan(start), path));
  ASSIGN_OR_RETURN(const int64_t data_begin, checkpoint::SafetensorsDataBegin(start, size, path));
  start.resize(static_cast<size_t>(data_begin));
  RETURN_IF_ERROR(ReadAt(fd, 0, absl::MakeSpan(start), path));
  return checkpoint::ParseSafetensorsHeader(start, size, path);
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ParseIndex(absl::string_view text,
                                                              absl::string_view file) {
  RETURN_IF_ERROR(base::Annotate(base::CheckJsonNesting(text), file));
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", what));
  };
  if (const std::string kind = base::WhatItIs(text); !json.is_object() && !kind.empty()) {
    return wrong(kind);
  }
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    return wrong("has no weight_map: expected an object that names each tensor's file");
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, name] : json["weight_map"].items()) {
    const std::string shown = base::Printable(tensor, kShownBytesMax);
    if (!name.is_string()) return wrong(absl::StrCat("the file of ", shown, " is no text"));
    const auto& text_of_name = name.get_ref<const std::string&>();
    if (!IsNameInFolder(text_of_name)) {
      return wrong(absl::StrCat("the file of ", shown, " is ",
                                base::Printable(text_of_name, kShownBytesMax),
                                ": expected the name of a .safetensors file in this folder"));
    }
    files[tensor] = text_of_name;
  }
  if (files.empty()) return wrong("weight_map is empty: expected each tensor's file");
  return files;
}

absl::StatusOr<std::unique_ptr<Folder>> Folder::Open(const std::string& path) {
  std::unique_ptr<Folder> folder(new Folder);
  folder->path_ = path;
  const std::string index_path = absl::StrCat(path, "/", kIndexFile);
  if (Exists(path, kWeightsFile)) {
    RETURN_IF_ERROR(folder->AddFile(std::string(kWeightsFile), nullptr));
    return folder;
  }
  const auto index = base::ReadFile(index_path, kIndexBytesMax);
  if (absl::IsNotFound(index.status())) {
    return absl::NotFoundError(absl::StrCat(path, ": has no weights: expected ", kWeightsFile,
                                            ", or several files with ", kIndexFile,
                                            OtherWeightsIn(path)));
  }
  if (!index.ok()) return index.status();
  ASSIGN_OR_RETURN(const auto files, ParseIndex(*index, index_path));
  std::set<std::string> names;
  for (const auto& [tensor, name] : files) names.insert(name);
  for (const std::string& name : names) RETURN_IF_ERROR(folder->AddFile(name, &files));
  for (const auto& [tensor, name] : files) {
    if (folder->tensors_.count(tensor) > 0) continue;
    return absl::DataLossError(absl::StrCat(path, "/", name, ": has no tensor ",
                                            base::Printable(tensor, kShownBytesMax), ", which ",
                                            kIndexFile, " says it has"));
  }
  return folder;
}

absl::Status Folder::AddFile(const std::string& name,
                             const std::map<std::string, std::string>* wanted) {
  File file;
  file.path = absl::StrCat(path_, "/", name);
  file.fd = base::UniqueFd(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.fd.valid() && errno == ENOENT) {
    return absl::NotFoundError(
        absl::StrCat(file.path, ": is missing, although ", kIndexFile, " names it; fetch it"));
  }
  if (!file.fd.valid()) return base::ErrnoStatus(errno, file.path);
  const auto read = ReadHeader(file.fd.get(), file.path);
  if (!read.ok()) {
    const bool is_damaged = absl::IsDataLoss(read.status());
    return is_damaged ? NameContent(file.fd.get(), file.path, read.status()) : read.status();
  }
  const checkpoint::SafetensorsHeader& header = *read;
  for (const checkpoint::SafetensorsEntry& entry : header.entries) {
    if (wanted != nullptr) {
      const auto found = wanted->find(entry.key);
      if (found == wanted->end() || found->second != name) continue;
    }
    tensors_[entry.key] = {.name = entry.key,
                           .dtype = entry.dtype,
                           .shape = entry.shape,
                           .file = files_.size(),
                           .begin = header.data_begin + entry.begin};
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

const StoredTensor* Folder::Find(absl::string_view name) const {
  const auto find = [this](absl::string_view key) {
    const auto found = tensors_.find(std::string(key));
    return found == tensors_.end() ? nullptr : &found->second;
  };
  if (const StoredTensor* tensor = find(name)) return tensor;
  // GPT-2 is often stored without the head, and then without this prefix.
  if (absl::ConsumePrefix(&name, "transformer.")) return find(name);
  if (name == "embed_out.weight") return find("lm_head.weight");
  return nullptr;
}

absl::Status Folder::Read(const StoredTensor& tensor, int64_t offset, absl::Span<char> out) const {
  const File& file = files_[tensor.file];
  return ReadAt(file.fd.get(), tensor.begin + offset, out, file.path);
}

}  // namespace megascale::hugging_face
