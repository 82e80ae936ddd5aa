// What a job trains on, ready to be read: bytes, or tokens that are encoded first if no process of
// this machine has done it before (token_cache.h). Every host process opens the same data set and
// compares fingerprints.
//
//   ASSIGN_OR_RETURN(const auto dataset, Dataset::Open(spec, {}));
//   dataset->samples().Read(sample, tokens);
//
// Threads: immutable; const methods from any thread. Blocking: Open reads, and perhaps encodes, all
// text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"
#include "runtime/data/corpus.h"
#include "runtime/data/dataset/job_tokenizer.h"
#include "runtime/data/samples.h"
#include "runtime/data/token_text.h"

namespace megascale::data {

struct DatasetOptions {
  OnProgress on_progress = {};  // may be empty
  // To evaluate: only the held-out part is prepared, and there are no samples.
  bool held_out_only = false;
  // With held_out_only: all of the text counts as held out.
  bool whole = false;
};

class Dataset {
 public:
  // `spec` is resolved. Errors: those of Corpus::Open, of the tokenizer and of reading text, each
  // with its file; InvalidArgument - fewer tokens than one sample needs, an id that the model's
  // vocabulary does not have, a token file of another tokenizer.
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const job::v1::JobSpec& spec,
                                                       const DatasetOptions& options);

  // Requires: not held_out_only.
  const Samples& samples() const { return *samples_; }
  const TokenText& held_out() const { return *held_out_; }
  // The training text of each source, from which samples are cut.
  std::vector<const TokenText*> train_texts() const;
  // Null: every byte is a token.
  const JobTokenizer* tokenizer() const {
    return tokenizer_.tokenizer == nullptr ? nullptr : &tokenizer_;
  }
  // Returns the token that ends every document; -1: every byte is a token, and no token ends a
  // document.
  int32_t end_token() const { return tokenizer() == nullptr ? -1 : tokenizer_.end_token; }
  // What is odd but allowed, one line each: binary files, skipped lines.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // Returns the identity of the data. Cost: for bytes, reads every file once.
  absl::StatusOr<checkpoint::v1::DataFingerprint> Fingerprint() const;
  // Returns the paths of the first files, and the number of the others, for messages.
  std::string PathsText() const;

 private:
  friend class DatasetBuilder;
  // One entry of data.files by weight, or all of them.
  struct Source {
    std::unique_ptr<Corpus> corpus;  // bytes
    std::vector<Input> inputs;       // tokens
    std::vector<std::unique_ptr<TokenText>> train_parts;
    std::vector<std::unique_ptr<TokenText>> held_out_parts;
    std::unique_ptr<JoinedText> train;
    double weight = 1;
  };

  Dataset() = default;

  JobTokenizer tokenizer_;
  std::vector<Source> sources_;
  std::unique_ptr<Samples> samples_;
  std::unique_ptr<JoinedText> held_out_;
  std::vector<std::string> warnings_;
  std::string settings_;  // what decides where each token is, beside the files and the tokenizer
};

}  // namespace megascale::data
