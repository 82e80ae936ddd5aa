#include "runtime/checkpoint/reader.h"

#include <fcntl.h>
#include <google/protobuf/util/message_differencer.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/check.h"
#include "runtime/base/checksum.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/format/safetensors.h"
#include "runtime/checkpoint/format/shard.h"
#include "runtime/checkpoint/format/stored_numbers.h"

namespace megascale::checkpoint {
namespace {

// Elements read at a time when they must be converted or hashed.
constexpr int64_t kChunkElements = 1 << 18;

template <typename Number>
constexpr absl::string_view kDtype = std::is_same_v<Number, float> ? "F32" : "F64";

absl::Status CheckShardFile(const std::string& path, int64_t size_bytes) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) {
    return base::ErrnoStatus(errno, absl::StrCat("shard ", path));
  }
  if (info.st_size == size_bytes) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("shard ", path, ": has ", info.st_size,
                                          " bytes, the manifest says ", size_bytes));
}

// Drops the file from the page cache, so that the next read comes from storage: this machine's
// memory may be what is faulty.
void DropFromCache(const std::string& path) {
  const base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.valid()) ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
}

// Checks sizes before any loop over elements, because a small manifest can claim any number of
// them.
absl::Status CheckSizes(const v1::ShardFile& file) {
  int64_t bytes = 0;
  for (const v1::TensorSlice& slice : file.slices()) {
    ASSIGN_OR_RETURN(const int64_t element_bytes, DtypeBytes(slice.dtype()));
    if (__builtin_add_overflow(bytes, slice.flat_count() * element_bytes, &bytes) ||
        bytes > file.size_bytes()) {
      return absl::DataLossError(absl::StrCat("its manifest has more tensors than the ",
                                              file.size_bytes(), " bytes of ", file.file(),
                                              " hold; it was damaged, use another checkpoint"));
    }
  }
  return absl::OkStatus();
}

// Returns whether a shard holds the slices that the manifest lists.
bool Match(const std::vector<v1::TensorSlice>& stored, const std::vector<v1::TensorSlice>& listed) {
  return std::equal(stored.begin(), stored.end(), listed.begin(), listed.end(),
                    [](const v1::TensorSlice& a, const v1::TensorSlice& b) {
                      return google::protobuf::util::MessageDifferencer::Equals(a, b);
                    });
}

}  // namespace

struct CheckpointReader::Request {
  const LogicalTensor* tensor;
  Box box;
  int64_t begin;  // first element within the box
  absl::Span<char> out;
  int64_t element_bytes;

  int64_t count() const { return static_cast<int64_t>(out.size()) / element_bytes; }
};

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(
    const std::string& directory) {
  std::unique_ptr<CheckpointReader> reader(new CheckpointReader);
  reader->name_ = absl::StrCat("checkpoint ", directory);
  ASSIGN_OR_RETURN(reader->manifest_, ReadManifest(directory));
  std::vector<const TensorIndex::Slices*> slices;
  for (const v1::ShardFile& file : reader->manifest_.shards()) {
    if (file.file().empty() || absl::StrContains(file.file(), "/")) {
      return absl::DataLossError(absl::StrCat(reader->name_, ": its manifest has the file name \"",
                                              file.file(), "\", expected one in the directory"));
    }
    ShardSource shard;
    shard.path = absl::StrCat(directory, "/", file.file());
    shard.size_bytes = file.size_bytes();
    shard.sha256 = file.sha256();
    shard.slices.assign(file.slices().begin(), file.slices().end());
    RETURN_IF_ERROR(CheckShardFile(shard.path, shard.size_bytes));
    slices.push_back(&file.slices());
    reader->shards_.push_back(std::move(shard));
  }
  auto index = TensorIndex::Create(slices);
  if (!index.ok()) return base::Annotate(index.status(), reader->name_);
  reader->index_ = *std::move(index);
  for (const v1::ShardFile& file : reader->manifest_.shards()) {
    RETURN_IF_ERROR(base::Annotate(CheckSizes(file), reader->name_));
  }
  RETURN_IF_ERROR(base::Annotate(reader->index_.CheckComplete(), reader->name_));
  return reader;
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::OpenSnapshot(
    absl::string_view payload) {
  std::unique_ptr<CheckpointReader> reader(new CheckpointReader);
  reader->name_ = "snapshot";
  ASSIGN_OR_RETURN(Shard parsed,
                   ParseShard(payload, static_cast<int64_t>(payload.size()), reader->name_));
  reader->manifest_.set_attempt(parsed.moment.attempt);
  reader->manifest_.set_step(parsed.moment.step);
  reader->manifest_.set_next_sample(parsed.moment.next_sample);
  TensorIndex::Slices slices(parsed.slices.begin(), parsed.slices.end());
  ASSIGN_OR_RETURN(reader->index_, TensorIndex::Create({&slices}));
  ShardSource shard;
  shard.path = reader->name_;
  shard.size_bytes = static_cast<int64_t>(payload.size());
  shard.slices = std::move(parsed.slices);
  shard.data_offsets = std::move(parsed.data_offsets);
  shard.memory = payload;
  shard.verified = true;
  reader->shards_.push_back(std::move(shard));
  return reader;
}

int64_t CheckpointReader::size_bytes() const {
  int64_t size_bytes = 0;
  for (const ShardSource& shard : shards_) size_bytes += shard.size_bytes;
  return size_bytes;
}

absl::Status CheckpointReader::VerifyShard(ShardSource& shard) {
  if (shard.verified) return absl::OkStatus();
  if (shard.failure.ok()) shard.failure = CompareAndOpenShard(shard);
  shard.verified = shard.failure.ok();
  return shard.failure;
}

absl::Status CheckpointReader::CompareAndOpenShard(ShardSource& shard) {
  ASSIGN_OR_RETURN(const std::string sha256, base::Sha256OfFile(shard.path));
  if (sha256 != shard.sha256) {
    DropFromCache(shard.path);
    return absl::DataLossError(absl::StrCat("shard ", shard.path, ": its SHA-256 is ", sha256,
                                            ", the manifest says ", shard.sha256,
                                            "; the file was damaged, use another checkpoint"));
  }
  return OpenShard(shard);
}

absl::Status CheckpointReader::OpenShard(ShardSource& shard) {
  shard.fd = base::UniqueFd(::open(shard.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!shard.fd.valid()) return base::ErrnoStatus(errno, absl::StrCat("shard ", shard.path));
  std::string start(static_cast<size_t>(std::min(kHeaderLengthBytes, shard.size_bytes)), '\0');
  RETURN_IF_ERROR(ReadBytes(shard, 0, absl::MakeSpan(start)));
  ASSIGN_OR_RETURN(const int64_t data_begin,
                   SafetensorsDataBegin(start, shard.size_bytes, shard.path));
  start.resize(static_cast<size_t>(data_begin));
  RETURN_IF_ERROR(ReadBytes(shard, 0, absl::MakeSpan(start)));
  ASSIGN_OR_RETURN(Shard parsed, ParseShard(start, shard.size_bytes, shard.path));
  if (!Match(parsed.slices, shard.slices) || parsed.moment.step != manifest_.step() ||
      parsed.moment.next_sample != manifest_.next_sample()) {
    return absl::DataLossError(
        absl::StrCat("shard ", shard.path, ": holds something else than the manifest says"));
  }
  shard.data_offsets = std::move(parsed.data_offsets);
  return absl::OkStatus();
}

absl::Status CheckpointReader::ReadBytes(const ShardSource& shard, int64_t offset,
                                         absl::Span<char> out) const {
  MEGASCALE_CHECK(offset >= 0 && offset + static_cast<int64_t>(out.size()) <= shard.size_bytes);
  if (!shard.fd.valid()) {
    std::memcpy(out.data(), shard.memory.data() + offset, out.size());
    return absl::OkStatus();
  }
  while (!out.empty()) {
    const ssize_t count = ::pread(shard.fd.get(), out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return base::ErrnoStatus(errno, absl::StrCat("shard ", shard.path));
    if (count == 0) {
      return absl::DataLossError(absl::StrCat("shard ", shard.path, ": ends at byte ", offset));
    }
    out.remove_prefix(static_cast<size_t>(count));
    offset += count;
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::Read(const Request& request) {
  std::vector<Box> missing = BoxesOfRange(request.box, request.begin, request.count());
  for (const TensorPiece& piece : request.tensor->pieces) {
    if (missing.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(ReadPiece(piece, request, &missing));
  }
  if (missing.empty()) return absl::OkStatus();
  const Box tensor = WholeBox(request.tensor->shape);
  int64_t first = request.tensor->num_elements;
  for (const Box& box : missing) first = std::min(first, IndexWithin(tensor, box.offset));
  return absl::NotFoundError(
      absl::StrCat(name_, ": does not hold element ", first, " of tensor ", request.tensor->name));
}

absl::Status CheckpointReader::ReadPiece(const TensorPiece& piece, const Request& request,
                                         std::vector<Box>* missing) {
  if (!Intersect(BoxOf(piece.description), request.box)) return absl::OkStatus();
  for (const Box& held : BoxesOf(piece.description)) {
    std::vector<Box> rest;
    for (Box& wanted : *missing) {
      if (const auto part = Intersect(held, wanted)) {
        RETURN_IF_ERROR(ReadPart(piece, request, *part));
        Subtract(wanted, *part, &rest);
      } else {
        rest.push_back(std::move(wanted));
      }
    }
    *missing = std::move(rest);
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::ReadPart(const TensorPiece& piece, const Request& request,
                                        const Box& part) {
  ShardSource& shard = shards_[piece.shard];
  RETURN_IF_ERROR(VerifyShard(shard));
  const int64_t data = shard.data_offsets[piece.slice];
  return ForEachRun(part, BoxOf(piece.description), request.box, [&](const BoxRun& run) {
    const auto bytes = [&request](int64_t elements) { return elements * request.element_bytes; };
    return ReadBytes(shard, data + bytes(run.from_begin - piece.description.flat_begin()),
                     request.out.subspan(static_cast<size_t>(bytes(run.to_begin - request.begin)),
                                         static_cast<size_t>(bytes(run.count))));
  });
}

absl::StatusOr<const LogicalTensor*> CheckpointReader::Find(absl::string_view name) const {
  auto found = index_.Find(name);
  if (!found.ok()) return base::Annotate(found.status(), name_);
  return found;
}

template <typename Number>
absl::Status CheckpointReader::ReadNumbers(const LogicalTensor& tensor, const Box& box,
                                           int64_t flat_begin, absl::Span<Number> out) {
  const absl::Status checked = CheckBox(box, tensor.shape);
  if (!checked.ok()) {
    return base::Annotate(checked, absl::StrCat(name_, ": tensor ", tensor.name));
  }
  ASSIGN_OR_RETURN(const int64_t box_elements, NumElements(box.shape));
  const auto count = static_cast<int64_t>(out.size());
  if (flat_begin < 0 || count > box_elements - flat_begin) {
    return absl::OutOfRangeError(absl::StrCat(name_, ": tensor ", tensor.name, " has ",
                                              box_elements, " elements, asked for ", count,
                                              " from ", flat_begin));
  }
  ASSIGN_OR_RETURN(const int64_t element_bytes, DtypeBytes(tensor.dtype));
  if (tensor.dtype == kDtype<Number>) {
    return Read({&tensor, box, flat_begin,
                 absl::MakeSpan(reinterpret_cast<char*>(out.data()), out.size() * sizeof(Number)),
                 element_bytes});
  }
  std::vector<char> chunk;
  for (int64_t at = 0; at < count; at += kChunkElements) {
    const auto size = static_cast<size_t>(std::min(kChunkElements, count - at));
    chunk.resize(size * static_cast<size_t>(element_bytes));
    RETURN_IF_ERROR(Read({&tensor, box, flat_begin + at, absl::MakeSpan(chunk), element_bytes}));
    RETURN_IF_ERROR(base::Annotate(
        ToNumbers(tensor.dtype, chunk, out.subspan(static_cast<size_t>(at), size)), tensor.name));
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::ReadSlice(absl::string_view name, int64_t flat_begin,
                                         absl::Span<float> out) {
  ASSIGN_OR_RETURN(const LogicalTensor* tensor, Find(name));
  return ReadNumbers(*tensor, WholeBox(tensor->shape), flat_begin, out);
}

absl::Status CheckpointReader::ReadSlice(absl::string_view name, int64_t flat_begin,
                                         absl::Span<double> out) {
  ASSIGN_OR_RETURN(const LogicalTensor* tensor, Find(name));
  return ReadNumbers(*tensor, WholeBox(tensor->shape), flat_begin, out);
}

absl::Status CheckpointReader::ReadBox(absl::string_view name, const Box& box, int64_t flat_begin,
                                       absl::Span<float> out) {
  ASSIGN_OR_RETURN(const LogicalTensor* tensor, Find(name));
  return ReadNumbers(*tensor, box, flat_begin, out);
}

absl::Status CheckpointReader::ReadBox(absl::string_view name, const Box& box, int64_t flat_begin,
                                       absl::Span<double> out) {
  ASSIGN_OR_RETURN(const LogicalTensor* tensor, Find(name));
  return ReadNumbers(*tensor, box, flat_begin, out);
}

absl::Status CheckpointReader::Verify() {
  for (ShardSource& shard : shards_) RETURN_IF_ERROR(VerifyShard(shard));
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckpointReader::Digest() {
  RETURN_IF_ERROR(Verify());
  base::Sha256 hash;
  std::vector<char> chunk;
  for (const LogicalTensor& tensor : tensors()) {
    hash.Update(absl::StrCat("tensor ", tensor.name, "\n", tensor.dtype, " [",
                             absl::StrJoin(tensor.shape, ","), "]\n"));
    ASSIGN_OR_RETURN(const int64_t element_bytes, DtypeBytes(tensor.dtype));
    for (int64_t at = 0; at < tensor.num_elements; at += kChunkElements) {
      const int64_t count = std::min(kChunkElements, tensor.num_elements - at);
      chunk.resize(static_cast<size_t>(count * element_bytes));
      RETURN_IF_ERROR(
          Read({&tensor, WholeBox(tensor.shape), at, absl::MakeSpan(chunk), element_bytes}));
      hash.Update(chunk.data(), chunk.size());
    }
  }
  hash.Update(
      absl::StrCat("step ", manifest_.step(), "\nnext_sample ", manifest_.next_sample(), "\n"));
  return hash.Finish();
}

}  // namespace megascale::checkpoint
