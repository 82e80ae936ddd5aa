#include "runtime/hugging_face/weights.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/checkpoint/format/safetensors.h"
#include "runtime/checkpoint/format/stored_numbers.h"
#include "runtime/hugging_face/config/json_fields.h"
#include "runtime/hugging_face/limits.h"
#include "runtime/hugging_face/nearest_tensor.h"
#include "runtime/model/config.h"

namespace megascale::hugging_face {
namespace {

using checkpoint::Box;

bool HoldsWeights(absl::string_view dtype) {
  return dtype == "F32" || dtype == "BF16" || dtype == "F16";
}

// True for types of positions, masks and counters.
bool IsCount(absl::string_view dtype) {
  return dtype == "I64" || dtype == "I32" || dtype == "I16" || dtype == "BOOL";
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

int64_t BytesOf(absl::string_view dtype) { return *checkpoint::DtypeBytes(dtype); }

// The rows and columns of a box; a vector has one column.
struct Block {
  int64_t first_row, rows, first_col, cols;
};
Block BlockOf(const Box& box) {
  const bool is_matrix = box.shape.size() > 1;
  return {box.offset[0], box.shape[0], is_matrix ? box.offset[1] : 0, is_matrix ? box.shape[1] : 1};
}

}  // namespace

absl::StatusOr<Config> ReadConfig(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kConfigFile);
  const auto text = base::ReadFile(path, kConfigBytesMax);
  if (!text.ok()) return text.status();
  return ParseConfig(*text, path);
}

absl::StatusOr<std::unique_ptr<Weights>> Weights::Open(const std::string& folder) {
  std::unique_ptr<Weights> weights(new Weights);
  ASSIGN_OR_RETURN(weights->config_, ReadConfig(folder));
  ASSIGN_OR_RETURN(weights->folder_, Folder::Open(folder));
  RETURN_IF_ERROR(weights->SettleHead());
  const auto config = model::MakeModelConfig(weights->config_.model);
  if (!config.ok()) return base::Annotate(config.status(), folder);
  const size_t num_tensors = weights->folder_->tensors().size();
  if (static_cast<size_t>(config->num_layers) > num_tensors) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": has ", num_tensors, " tensors for ", config->num_layers,
                     " layers: expected several for each layer, as ", kConfigFile, " says"));
  }
  weights->maps_ = MapTensors(weights->config_.architecture, *config);
  for (size_t i = 0; i < weights->maps_.size(); ++i) {
    weights->index_of_name_[weights->maps_[i].name] = i;
  }
  RETURN_IF_ERROR(weights->CheckTensors());
  return weights;
}

absl::Status Weights::SettleHead() {
  if (!config_.model.tie_word_embeddings()) return absl::OkStatus();
  const StoredTensor* head = folder_->Find(HeadName(config_.architecture));
  const StoredTensor* embedding = folder_->Find(EmbeddingName(config_.architecture));
  if (head == nullptr || embedding == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool are_equal, AreEqual(*head, *embedding));
  if (are_equal) return absl::OkStatus();
  config_.model.set_tie_word_embeddings(false);
  config_.warnings.push_back(
      absl::StrCat(folder_->path(), ": tie_word_embeddings is true, but ", head->name,
                   " has other numbers than ", embedding->name,
                   ": the model is untied; set tie_word_embeddings to false in ", kConfigFile));
  return absl::OkStatus();
}

// Compares bits if the types are the same, else numbers.
absl::StatusOr<bool> Weights::AreEqual(const StoredTensor& a, const StoredTensor& b) const {
  // Where they are no matrices of this model, that is found later.
  if (a.shape != b.shape || !HoldsWeights(a.dtype) || !HoldsWeights(b.dtype)) return false;
  ASSIGN_OR_RETURN(const int64_t elements, checkpoint::NumElements(a.shape));
  std::vector<char> bytes_of_a, bytes_of_b;
  std::vector<float> numbers_of_a, numbers_of_b;
  for (int64_t at = 0; at < elements; at += kBlockElements) {
    const auto count = static_cast<size_t>(std::min(kBlockElements, elements - at));
    const auto read = [&](const StoredTensor& tensor, std::vector<char>* bytes,
                          std::vector<float>* numbers) -> absl::Status {
      bytes->resize(count * static_cast<size_t>(BytesOf(tensor.dtype)));
      numbers->resize(count);
      RETURN_IF_ERROR(folder_->Read(tensor, at * BytesOf(tensor.dtype), absl::MakeSpan(*bytes)));
      return checkpoint::ToNumbers(tensor.dtype, *bytes, absl::MakeSpan(*numbers));
    };
    RETURN_IF_ERROR(read(a, &bytes_of_a, &numbers_of_a));
    RETURN_IF_ERROR(read(b, &bytes_of_b, &numbers_of_b));
    if (a.dtype == b.dtype ? bytes_of_a != bytes_of_b : numbers_of_a != numbers_of_b) return false;
  }
  return true;
}

absl::Status Weights::CheckPart(const TensorMap& map, const Part& part,
                                const StoredTensor& stored) const {
  const std::string& path = folder_->path();
  const std::vector<int64_t> shape = map.ShapeOf(part);
  if (stored.shape != shape) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", part.name, " has the shape ", ShapeText(stored.shape),
                     ": expected ", ShapeText(shape), ", as ", kConfigFile, " says"));
  }
  if (HoldsWeights(stored.dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", part.name, " is stored as ",
                                                 stored.dtype, ": expected F32, BF16 or F16"));
}

absl::Status Weights::CheckTensors() {
  std::set<std::string> used;
  const std::string& path = folder_->path();
  const std::string head = HeadName(config_.architecture);
  for (TensorMap& map : maps_) {
    for (Part& part : map.parts) {
      // A tied model may have its one matrix under the other name.
      if (folder_->Find(part.name) == nullptr && config_.model.tie_word_embeddings() &&
          part.name == EmbeddingName(config_.architecture) && folder_->Find(head) != nullptr) {
        part.name = head;
      }
      const StoredTensor* stored = folder_->Find(part.name);
      if (stored == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, ": has no tensor ", part.name, ", which ", Name(config_.architecture),
            " consists of", NearestTensor(part.name, folder_->tensors())));
      }
      RETURN_IF_ERROR(CheckPart(map, part, *stored));
      used.insert(stored->name);
    }
  }
  if (config_.model.tie_word_embeddings()) {
    const StoredTensor* copy = folder_->Find(head);
    if (copy != nullptr) used.insert(copy->name);
  }
  for (const auto& [name, tensor] : folder_->tensors()) {
    if (used.count(name) > 0 || IsTable(name)) continue;
    const std::string shown = base::Printable(name, kShownBytesMax);
    if (IsCount(tensor.dtype)) {
      config_.warnings.push_back(absl::StrCat(path, ": ", shown, " is ignored: its type ",
                                              tensor.dtype, " holds no weights"));
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": has a tensor ", shown, " of type ", tensor.dtype, ", which is none of ",
        Name(config_.architecture), " with this ", kConfigFile));
  }
  return absl::OkStatus();
}

const std::string& Weights::DtypeOf(const Part& part) const {
  return folder_->Find(part.name)->dtype;
}

std::string Weights::DtypeOf(const TensorMap& tensor) const {
  const std::string& first = folder_->Find(tensor.parts[0].name)->dtype;
  const bool same = std::all_of(tensor.parts.begin(), tensor.parts.end(), [&](const Part& part) {
    return folder_->Find(part.name)->dtype == first;
  });
  return same ? first : "F32";
}

absl::Status Weights::ReadTransposed(const TensorMap& tensor, const Part& part, const Box& box,
                                     absl::Span<char> out) const {
  const StoredTensor& stored = *folder_->Find(part.name);
  const Block block = BlockOf(box);
  const auto size = static_cast<size_t>(BytesOf(stored.dtype));
  std::vector<char> column(static_cast<size_t>(block.rows) * size);
  for (int64_t c = 0; c < block.cols; ++c) {
    const int64_t first = (block.first_col + c) * part.rows + block.first_row - part.first_row;
    RETURN_IF_ERROR(
        folder_->Read(stored, first * static_cast<int64_t>(size), absl::MakeSpan(column)));
    for (size_t r = 0; r < static_cast<size_t>(block.rows); ++r) {
      const size_t to = r * static_cast<size_t>(block.cols) + static_cast<size_t>(c);
      std::memcpy(out.data() + to * size, column.data() + r * size, size);
    }
  }
  return absl::OkStatus();
}

absl::Status Weights::ReadPart(const TensorMap& tensor, const Part& part, const Box& box,
                               absl::Span<char> out) const {
  if (part.form == Form::kTransposed) return ReadTransposed(tensor, part, box, out);
  const StoredTensor& stored = *folder_->Find(part.name);
  const Block block = BlockOf(box);
  const int64_t size = BytesOf(stored.dtype);
  const bool whole_rows = block.cols == tensor.cols();
  for (int64_t r = 0; r < block.rows;) {
    const TensorMap::Run run = tensor.TheirRow(part, block.first_row + r);
    const int64_t rows = whole_rows ? std::min(run.count, block.rows - r) : 1;
    const int64_t first = run.row * tensor.cols() + block.first_col;
    RETURN_IF_ERROR(folder_->Read(stored, first * size,
                                  out.subspan(static_cast<size_t>(r * block.cols * size),
                                              static_cast<size_t>(rows * block.cols * size))));
    r += rows;
  }
  return absl::OkStatus();
}

absl::Status Weights::CheckFinite(const TensorMap& tensor, const Part& part, const Box& box,
                                  absl::Span<const char> bytes) const {
  const StoredTensor& stored = *folder_->Find(part.name);
  const int64_t found = checkpoint::FirstNotFinite(stored.dtype, bytes);
  if (found < 0) return absl::OkStatus();
  const Block block = BlockOf(box);
  const int64_t row = block.first_row + found / block.cols;
  const int64_t col = block.first_col + found % block.cols;
  std::vector<int64_t> index;
  if (part.form == Form::kTransposed) {
    index = {col, row - part.first_row};
  } else {
    index = {tensor.TheirRow(part, row).row};
    if (stored.shape.size() > 1) index.push_back(col);
  }
  const auto size = static_cast<size_t>(BytesOf(stored.dtype));
  float value = 0;
  RETURN_IF_ERROR(checkpoint::ToNumbers(stored.dtype,
                                        bytes.subspan(static_cast<size_t>(found) * size, size),
                                        absl::MakeSpan(&value, 1)));
  return absl::DataLossError(absl::StrCat(folder_->path(), ": ", stored.name, ShapeText(index),
                                          " is ", value, ": expected a finite number"));
}

absl::Status Weights::ReadStored(const TensorMap& tensor, const Box& box, int64_t begin,
                                 absl::Span<char> out) const {
  const std::string dtype = DtypeOf(tensor);
  const int64_t size = BytesOf(dtype);
  const int64_t count = static_cast<int64_t>(out.size()) / size;
  for (const Box& piece : checkpoint::BoxesOfRange(box, begin, count)) {
    for (const Part& part : tensor.parts) {
      Box rows = checkpoint::WholeBox(tensor.shape);
      rows.offset[0] = part.first_row;
      rows.shape[0] = part.rows;
      const auto wanted = checkpoint::Intersect(piece, rows);
      if (!wanted.has_value()) continue;
      const auto elements = static_cast<size_t>(*checkpoint::NumElements(wanted->shape));
      const size_t at = static_cast<size_t>(checkpoint::IndexWithin(box, wanted->offset) - begin);
      const absl::Span<char> to =
          out.subspan(at * static_cast<size_t>(size), elements * static_cast<size_t>(size));
      const std::string& stored = folder_->Find(part.name)->dtype;
      if (stored == dtype) {
        RETURN_IF_ERROR(ReadPart(tensor, part, *wanted, to));
        RETURN_IF_ERROR(CheckFinite(tensor, part, *wanted, to));
        continue;
      }
      std::vector<char> narrow(elements * static_cast<size_t>(BytesOf(stored)));
      std::vector<float> wide(elements);
      RETURN_IF_ERROR(ReadPart(tensor, part, *wanted, absl::MakeSpan(narrow)));
      RETURN_IF_ERROR(CheckFinite(tensor, part, *wanted, narrow));
      RETURN_IF_ERROR(checkpoint::ToNumbers(stored, narrow, absl::MakeSpan(wide)));
      RETURN_IF_ERROR(checkpoint::FromNumbers(dtype, wide, to));
    }
  }
  return absl::OkStatus();
}

template <typename Number>
absl::Status Weights::ReadNumbers(absl::string_view name, const Box& box, int64_t begin,
                                  absl::Span<Number> out) const {
  const auto found = index_of_name_.find(name);
  if (found == index_of_name_.end()) {
    return absl::NotFoundError(absl::StrCat(folder_->path(), ": has no tensor for ", name));
  }
  const TensorMap& tensor = maps_[found->second];
  RETURN_IF_ERROR(base::Annotate(checkpoint::CheckBox(box, tensor.shape),
                                 absl::StrCat(folder_->path(), ": ", name)));
  const std::string dtype = DtypeOf(tensor);
  std::vector<char> bytes;
  const auto count = static_cast<int64_t>(out.size());
  for (int64_t at = 0; at < count; at += kBlockElements) {
    const auto size = static_cast<size_t>(std::min(kBlockElements, count - at));
    bytes.resize(size * static_cast<size_t>(BytesOf(dtype)));
    RETURN_IF_ERROR(ReadStored(tensor, box, begin + at, absl::MakeSpan(bytes)));
    RETURN_IF_ERROR(
        checkpoint::ToNumbers(dtype, bytes, out.subspan(static_cast<size_t>(at), size)));
  }
  return absl::OkStatus();
}

absl::Status Weights::Read(absl::string_view name, const Box& box, int64_t begin,
                           absl::Span<float> out) const {
  return ReadNumbers(name, box, begin, out);
}

absl::Status Weights::Read(absl::string_view name, const Box& box, int64_t begin,
                           absl::Span<double> out) const {
  return ReadNumbers(name, box, begin, out);
}

}  // namespace megascale::hugging_face
