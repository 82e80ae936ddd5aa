// Reads the rotary positions of a config.json. `transformers` 5 writes rope_parameters, with theta
// and the scaling in it; version 4 wrote rope_theta and rope_scaling. Where the two versions read
// the same file differently, it is refused. Private to this folder. Threads: plain function.
#pragma once

#include "proto/job.pb.h"
#include "runtime/hugging_face/config/json_fields.h"

namespace megascale::hugging_face {

// The family's names of fields.
struct RotaryNames {
  const char* theta = "rope_theta";
  const char* part = nullptr;  // of a head that is turned; null: all of it
};

// Sets the fields of rotary positions. Requires: max_position_embeddings is set.
void ReadRotary(const RotaryNames& names, JsonFields* fields, job::v1::ModelSpec* model);

}  // namespace megascale::hugging_face
