#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"
#include "runtime/base/check.h"
#include "runtime/base/checksum.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/format/message_json.h"
#include "runtime/checkpoint/format/safetensors.h"
#include "runtime/checkpoint/format/shard.h"
#include "runtime/checkpoint/reader.h"
#include "tests/fuzz/target.h"

namespace megascale::fuzz {
namespace {

using checkpoint::CheckpointReader;

// A folder in memory with one shard of 128 bytes of data, for manifests under test.
class Folder {
 public:
  Folder() {
    char path[] = "/dev/shm/megascale-fuzz-XXXXXX";
    MEGASCALE_CHECK(::mkdtemp(path) != nullptr);
    path_ = path;
    shard_ = SerializeShard();
    Write(checkpoint::ShardFileName(0), shard_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  void Write(const std::string& name, absl::string_view text) const {
    std::ofstream(absl::StrCat(path_, "/", name), std::ios::binary)
        .write(text.data(), static_cast<std::streamsize>(text.size()));
  }
  const std::string& path() const { return path_; }

 private:
  static std::string SerializeShard() {
    checkpoint::v1::TensorSlice slice;
    slice.set_name("w");
    slice.set_key("w");
    slice.set_dtype("F32");
    slice.add_global_shape(8);
    slice.add_global_shape(4);
    slice.set_flat_count(32);
    const auto layout = checkpoint::ShardLayout::Create(0, {slice});
    MEGASCALE_CHECK(layout.ok());
    std::vector<std::byte> payload(static_cast<size_t>(layout->size_bytes()));
    layout->WriteHeader({1, 100, 800}, absl::MakeSpan(payload));
    return {reinterpret_cast<const char*>(payload.data()), payload.size()};
  }

  std::string path_;
  std::string shard_;
};

// Reads all tensors that are not absurdly large.
void ReadAll(CheckpointReader* reader) {
  constexpr int64_t kElementsMax = 1 << 16;
  for (const checkpoint::LogicalTensor& tensor : reader->tensors()) {
    MEGASCALE_CHECK(tensor.num_elements >= 0);
    if (tensor.num_elements > kElementsMax) continue;
    std::vector<float> values(static_cast<size_t>(tensor.num_elements));
    reader->ReadSlice(tensor.name, 0, absl::MakeSpan(values)).IgnoreError();
  }
  reader->Verify().IgnoreError();
  reader->Digest().status().IgnoreError();
}

void MutateLength(std::string* file) {
  const uint64_t length = file->size() < 8 ? 0 : file->size() - 8;
  if (file->size() >= sizeof(length)) std::memcpy(file->data(), &length, sizeof(length));
}

}  // namespace

void RunManifest(absl::string_view input) {
  static const Folder folder;
  folder.Write(std::string(checkpoint::kManifestFile), input);
  const auto reader = CheckpointReader::Open(folder.path());
  if (reader.ok()) ReadAll(reader->get());
}

std::string MutateManifest(const std::string& input, Random* random) {
  checkpoint::v1::Manifest manifest;
  if (!checkpoint::FromJson(input, "manifest", &manifest).ok()) return input + "{}";
  MutateMessage(&manifest, random);
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(manifest, &json);
  return status.ok() ? json : input;
}

void RunSafetensors(absl::string_view input) {
  const auto size = static_cast<int64_t>(input.size());
  const auto header = checkpoint::ParseSafetensorsHeader(input, size, "file");
  if (header.ok()) {
    int64_t end = 0;
    for (const checkpoint::SafetensorsEntry& entry : header->entries) {
      MEGASCALE_CHECK(entry.begin == end && entry.size_bytes >= 0);
      end += entry.size_bytes;
    }
    MEGASCALE_CHECK(header->data_begin + end == size);
  }
  const auto reader = CheckpointReader::OpenSnapshot(input);
  MEGASCALE_CHECK(header.ok() || !reader.ok());
  if (reader.ok()) ReadAll(reader->get());
}

// Corrects the header's length, so that the target reads on; and mutates the shard's description,
// which is JSON within JSON, as a message.
std::string MutateSafetensors(const std::string& input, Random* random) {
  auto header = checkpoint::ParseSafetensorsHeader(input, static_cast<int64_t>(input.size()), "");
  if (!header.ok()) {
    std::string mended = input;
    MutateLength(&mended);
    return mended;
  }
  checkpoint::v1::ShardFile record;
  const auto shard = header->metadata.find("shard");
  if (shard == header->metadata.end() || !checkpoint::FromJson(shard->second, "", &record).ok() ||
      random->OneIn(4)) {
    if (header->entries.empty()) return input;
    auto& entry = header->entries[random->Below(header->entries.size())];
    entry.shape.push_back(InterestingNumber(random));
    return checkpoint::SerializeSafetensorsHeader(*header) +
           input.substr(static_cast<size_t>(header->data_begin));
  }
  MutateMessage(&record, random);
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(record, &json).ok()) return input;
  shard->second = json;
  return checkpoint::SerializeSafetensorsHeader(*header) +
         input.substr(static_cast<size_t>(header->data_begin));
}

}  // namespace megascale::fuzz
