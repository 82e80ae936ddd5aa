// The tokenizer of a job: the one that its data section names, or one that is learnt from its text.
// Threads: plain functions. Blocking: storage; learning takes seconds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "runtime/data/dataset/inputs.h"
#include "runtime/data/dataset/token_cache.h"
#include "runtime/data/tokenizer/files/tokenizer_file.h"
#include "runtime/data/tokenizer/tokenizer.h"

namespace megascale::data {

// True if the job has a tokenizer; else every byte is a token.
bool UsesTokenizer(const job::v1::DataSpec& spec);

struct JobTokenizer {
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  int32_t end_token = 0;  // ends every document
  // The files that make it again in a folder of their own.
  std::vector<tokenizer::LoadedTokenizer::File> files;
};

// Loads the tokenizer that `spec` names. Requires: UsesTokenizer, and none is to be learnt.
// Errors: those of LoadTokenizer; InvalidArgument - no end token. Each begins with the field.
absl::StatusOr<JobTokenizer> LoadJobTokenizer(const job::v1::DataSpec& spec);

// Learns a byte-level BPE of spec.tokenizer_vocab_size tokens from the training part of `inputs`;
// takes it from the folder of `cache` if it was learnt before. Determinism: it depends on the text
// and the size alone. Errors: those of reading text; InvalidArgument - token files, no text.
absl::StatusOr<JobTokenizer> LearnJobTokenizer(const job::v1::DataSpec& spec,
                                               const std::vector<Input>& inputs,
                                               const TokenCache& cache,
                                               const OnProgress& on_progress);

// Sets the size of the model's vocabulary to the tokenizer's if the job gives none. Errors:
// InvalidArgument, beginning with the field - those of LoadJobTokenizer; the model's vocabulary is
// smaller than the tokenizer's. Added tokens at its end may be missing in the model's: text in
// which they occur is refused.
absl::Status FillVocabulary(job::v1::JobSpec* spec);

}  // namespace megascale::data
