// The part of import.h that writes a Hugging Face folder.
#include <google/protobuf/util/message_differencer.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/format/safetensors.h"
#include "runtime/checkpoint/format/stored_numbers.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/hugging_face/config/json_fields.h"
#include "runtime/hugging_face/import.h"
#include "runtime/hugging_face/kept_files.h"
#include "runtime/hugging_face/limits.h"
#include "runtime/hugging_face/text_files.h"
#include "runtime/hugging_face/unfinished_folder.h"
#include "runtime/hugging_face/weights.h"
#include "runtime/model/config.h"

namespace megascale::hugging_face {
namespace {

using checkpoint::CheckpointReader;
using job::v1::ModelSpec;
using OrderedJson = nlohmann::ordered_json;

// One of their tensors, to be written.
struct Output {
  const TensorMap* map;
  const Part* part;
  std::string dtype;
  int64_t size_bytes = 0;
};

struct OutputFile {
  std::string name;
  std::vector<Output> tensors;
  int64_t size_bytes = 0;
};

std::string StoredDtype(const CheckpointReader& reader, const std::string& name) {
  for (const checkpoint::LogicalTensor& tensor : reader.tensors()) {
    if (tensor.name == name) return tensor.dtype == "F64" ? "F32" : tensor.dtype;
  }
  return "F32";  // a missing tensor is reported when it is read
}

// Distributes the tensors over files, in their order.
std::vector<OutputFile> PlanFiles(const std::vector<TensorMap>& maps,
                                  const CheckpointReader& reader, const ExportOptions& options) {
  std::vector<OutputFile> files(1);
  for (const TensorMap& map : maps) {
    const std::string dtype = options.dtype.empty() ? StoredDtype(reader, map.name) : options.dtype;
    for (const Part& part : map.parts) {
      const int64_t bytes = part.rows * map.cols() * *checkpoint::DtypeBytes(dtype);
      OutputFile& last = files.back();
      const bool is_full =
          !last.tensors.empty() && last.size_bytes + bytes > options.file_bytes_max;
      OutputFile& file = is_full ? files.emplace_back() : last;
      file.tensors.push_back({&map, &part, dtype, bytes});
      file.size_bytes += bytes;
    }
  }
  for (size_t i = 0; i < files.size(); ++i) {
    files[i].name = files.size() == 1
                        ? std::string(kWeightsFile)
                        : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, files.size());
  }
  return files;
}

// Returns how many finite numbers round to an infinite one.
int64_t CountTooLarge(absl::string_view dtype, absl::Span<const float> numbers) {
  if (dtype != "F16" && dtype != "BF16") return 0;
  // Halfway between the largest number of the type and the next power of two.
  const float limit = dtype == "F16" ? 65520.0F : 0x1.ffp127F;
  return std::count_if(numbers.begin(), numbers.end(), [limit](float number) {
    return std::isfinite(number) && std::abs(number) >= limit;
  });
}

// Writes the tensors of one file after its header.
class FileWriter {
 public:
  FileWriter(CheckpointReader* reader, base::UniqueFd fd, std::string path)
      : reader_(*reader), path_(std::move(path)), fd_(std::move(fd)) {}

  absl::Status Write(const OutputFile& file) {
    RETURN_IF_ERROR(Append(HeaderOf(file)));
    for (const Output& output : file.tensors) RETURN_IF_ERROR(WriteTensor(output));
    if (::fsync(fd_.get()) != 0) return base::ErrnoStatus(errno, absl::StrCat("sync ", path_));
    return absl::OkStatus();
  }

 private:
  static std::string HeaderOf(const OutputFile& file) {
    checkpoint::SafetensorsHeader header;
    header.metadata["format"] = "pt";  // `transformers` wants to know the framework
    int64_t begin = 0;
    for (const Output& output : file.tensors) {
      header.entries.push_back({.key = output.part->name,
                                .dtype = output.dtype,
                                .shape = output.map->ShapeOf(*output.part),
                                .begin = begin,
                                .size_bytes = output.size_bytes});
      begin += output.size_bytes;
    }
    return checkpoint::SerializeSafetensorsHeader(header);
  }

  absl::Status Append(absl::string_view bytes) {
    return base::Annotate(base::WriteAll(fd_.get(), bytes), path_);
  }

  absl::Status AppendNumbers(const Output& output, absl::Span<const float> numbers) {
    bytes_.resize(numbers.size() * static_cast<size_t>(*checkpoint::DtypeBytes(output.dtype)));
    RETURN_IF_ERROR(checkpoint::FromNumbers(output.dtype, numbers, absl::MakeSpan(bytes_)));
    num_too_large_ += CountTooLarge(output.dtype, numbers);
    return Append({bytes_.data(), bytes_.size()});
  }

  // Writes elements [begin, begin + count) of our tensor, in their order.
  absl::Status WriteFlat(const Output& output, int64_t begin, int64_t count) {
    for (int64_t at = 0; at < count; at += kBlockElements) {
      numbers_.resize(static_cast<size_t>(std::min(kBlockElements, count - at)));
      RETURN_IF_ERROR(reader_.ReadSlice(output.map->name, begin + at, absl::MakeSpan(numbers_)));
      RETURN_IF_ERROR(AppendNumbers(output, numbers_));
    }
    return absl::OkStatus();
  }

  absl::Status WriteTransposed(const Output& output) {
    const int64_t rows = output.part->rows;
    const int64_t cols = output.map->cols();
    const int64_t cols_max = std::max<int64_t>(1, kBlockElements / rows);
    std::vector<float> turned;
    for (int64_t c = 0; c < cols; c += cols_max) {
      const int64_t count = std::min(cols_max, cols - c);
      numbers_.resize(static_cast<size_t>(rows * count));
      turned.resize(numbers_.size());
      const checkpoint::Box box = {.offset = {output.part->first_row, c}, .shape = {rows, count}};
      RETURN_IF_ERROR(reader_.ReadBox(output.map->name, box, 0, absl::MakeSpan(numbers_)));
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t k = 0; k < count; ++k) {
          turned[static_cast<size_t>(k * rows + r)] = numbers_[static_cast<size_t>(r * count + k)];
        }
      }
      RETURN_IF_ERROR(AppendNumbers(output, turned));
    }
    return absl::OkStatus();
  }

  // Refuses numbers that became infinite.
  absl::Status WriteTensor(const Output& output) {
    num_too_large_ = 0;
    RETURN_IF_ERROR(WriteRows(output));
    if (num_too_large_ == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", output.part->name, " has ", num_too_large_, " ",
                     num_too_large_ == 1 ? "number" : "numbers", " beyond the range of ",
                     output.dtype, ", which would become infinite; export it ",
                     output.dtype == "F16" ? "as bf16 or fp32" : "as fp32"));
  }

  absl::Status WriteRows(const Output& output) {
    const Part& part = *output.part;
    if (part.form == Form::kTransposed) return WriteTransposed(output);
    const int64_t cols = output.map->cols();
    for (int64_t row = 0; row < part.rows;) {
      const TensorMap::Run run = output.map->OurRow(part, row);
      RETURN_IF_ERROR(WriteFlat(output, run.row * cols, run.count * cols));
      row += run.count;
    }
    return absl::OkStatus();
  }

  CheckpointReader& reader_;
  const std::string path_;
  const base::UniqueFd fd_;
  std::vector<float> numbers_;
  std::vector<char> bytes_;
  int64_t num_too_large_ = 0;  // in the tensor that is being written
};

absl::Status WriteIndex(const std::vector<OutputFile>& files, UnfinishedFolder* folder) {
  OrderedJson index;
  int64_t total = 0;
  for (const OutputFile& file : files) total += file.size_bytes;
  index["metadata"]["total_size"] = total;
  for (const OutputFile& file : files) {
    for (const Output& output : file.tensors) index["weight_map"][output.part->name] = file.name;
  }
  return folder->Write(kIndexFile, index.dump(2) + "\n");
}

bool HasConfig(const std::string& folder) {
  return ::access(absl::StrCat(folder, "/", kConfigFile).c_str(), R_OK) == 0;
}

// Returns the Hugging Face folder from which a checkpoint's weights came, or the copies of its
// small files; empty if it is not known or gone. Jobs may have begun with each other's weights.
std::string OriginOf(std::string checkpoint, std::string from) {
  constexpr int kJobsMax = 16;
  for (int i = 0; i < kJobsMax; ++i) {
    if (HasConfig(KeptFolderOf(checkpoint))) return KeptFolderOf(checkpoint);
    if (from.empty()) return "";
    if (HasConfig(from)) return from;
    const auto manifest = checkpoint::ReadManifest(from);
    if (!manifest.ok()) return "";
    checkpoint = std::exchange(from, manifest->spec().model().from());
  }
  return "";
}

const char* TorchName(absl::string_view dtype) {
  if (dtype == "BF16") return "bfloat16";
  return dtype == "F16" ? "float16" : "float32";
}

// Returns the text of config.json: that of the origin, if it still describes the model.
absl::StatusOr<std::string> ConfigText(const std::string& origin, ModelSpec model,
                                       const char* dtype, const TextFiles& text_files) {
  model.clear_from();
  const auto make_new = [&]() -> absl::StatusOr<std::string> {
    ASSIGN_OR_RETURN(const std::string made, WriteConfig(model, dtype));
    return text_files.WithEndTokens(made, /*is_new=*/true);
  };
  const auto original =
      origin.empty() ? absl::StatusOr<std::string>(absl::NotFoundError("no origin"))
                     : base::ReadFile(absl::StrCat(origin, "/", kConfigFile), kConfigBytesMax);
  if (!original.ok()) return make_new();
  auto config = ParseConfig(*original, origin);
  if (!config.ok()) return make_new();
  // The origin's head differed from its embeddings, or the job untied them.
  const bool is_untied = config->model.tie_word_embeddings() && !model.tie_word_embeddings();
  if (is_untied) config->model.set_tie_word_embeddings(false);
  if (!google::protobuf::util::MessageDifferencer::Equals(config->model, model)) return make_new();
  OrderedJson json = OrderedJson::parse(*original, nullptr, /*allow_exceptions=*/false);
  bool differs = is_untied;
  if (is_untied) json["tie_word_embeddings"] = false;
  for (const char* key : {"torch_dtype", "dtype"}) {
    if (!json.contains(key) || json[key] == dtype) continue;
    json[key] = dtype;
    differs = true;
  }
  return text_files.WithEndTokens(differs ? json.dump(2) + "\n" : *original, /*is_new=*/false);
}

absl::StatusOr<TextFiles> FindTextFiles(const ExportOptions& options, const std::string& origin,
                                        const checkpoint::v1::Manifest& manifest) {
  return TextFiles::Find({.checkpoint = options.checkpoint,
                          .is_of_job = manifest.kind() != checkpoint::v1::CHECKPOINT_KIND_WEIGHTS,
                          .origin = origin,
                          .tokenizer = manifest.spec().data().tokenizer(),
                          .end_token = options.end_token,
                          .positions = manifest.spec().model().max_position_embeddings()});
}

absl::Status CheckOptions(const ExportOptions& options) {
  for (const char* dtype : {"", "F32", "BF16", "F16"}) {
    if (options.dtype == dtype) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("dtype ", options.dtype, ": expected F32, BF16 or F16"));
}

}  // namespace

absl::StatusOr<Converted> Export(const ExportOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(options.checkpoint));
  const ModelSpec model = Resolved(reader->manifest().spec().model());
  const std::string origin = OriginOf(options.checkpoint, model.from());
  // A model may fit several architectures, such as Mistral without a window: the origin's is kept.
  ASSIGN_OR_RETURN(Architecture architecture, ArchitectureOf(model));
  const auto config = model::MakeModelConfig(model);
  if (!config.ok()) return base::Annotate(config.status(), options.checkpoint);
  const std::vector<TensorMap> maps = MapTensors(architecture, *config);
  const std::vector<OutputFile> files = PlanFiles(maps, *reader, options);
  ASSIGN_OR_RETURN(const TextFiles text_files, FindTextFiles(options, origin, reader->manifest()));
  ASSIGN_OR_RETURN(const std::string config_text,
                   ConfigText(origin, model, TorchName(files[0].tensors[0].dtype), text_files));
  std::error_code error;
  const bool is_new = !std::filesystem::exists(options.folder, error);
  RETURN_IF_ERROR(MakeEmptyFolder(options.folder));
  UnfinishedFolder unfinished(options.folder, is_new);
  // First: another export into this folder fails here, before it has written anything.
  ASSIGN_OR_RETURN(base::UniqueFd first, unfinished.Create(files[0].name));
  // Before the weights: what fails here fails at once.
  RETURN_IF_ERROR(text_files.Write([&](absl::string_view name, absl::string_view text) {
    return unfinished.Write(name, text);
  }));
  Converted result;
  for (const OutputFile& file : files) {
    ASSIGN_OR_RETURN(base::UniqueFd fd,
                     first.valid() ? absl::StatusOr<base::UniqueFd>(base::UniqueFd(first.release()))
                                   : unfinished.Create(file.name));
    FileWriter writer(reader.get(), std::move(fd), unfinished.PathOf(file.name));
    RETURN_IF_ERROR(writer.Write(file));
    result.num_tensors += static_cast<int64_t>(file.tensors.size());
    result.size_bytes += file.size_bytes;
  }
  result.num_files = static_cast<int64_t>(files.size());
  if (files.size() > 1) RETURN_IF_ERROR(WriteIndex(files, &unfinished));
  // Last: a folder without it cannot be loaded.
  RETURN_IF_ERROR(unfinished.Write(kConfigFile, config_text));
  unfinished.Keep();
  return result;
}

}  // namespace megascale::hugging_face
