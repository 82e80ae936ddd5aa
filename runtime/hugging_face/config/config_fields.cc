#include "runtime/hugging_face/config/config_fields.h"

#include <algorithm>

namespace megascale::hugging_face {
namespace {

using Names = absl::Span<const absl::string_view>;

constexpr absl::string_view kOfEveryFamily[] = {
    "architectures",
    "model_type",
    "vocab_size",
    "initializer_range",
    "tie_word_embeddings",
    "eos_token_id",
    "layer_types",
    "sliding_window",
    // Refused but for their usual value.
    "add_cross_attention",
    "compression_config",
    "is_encoder_decoder",
    "pruned_heads",
    "quantization_config",
};

constexpr absl::string_view kOfGpt2[] = {
    "n_embd", "n_layer", "n_head", "n_inner", "n_positions", "activation_function",
    "layer_norm_epsilon", "attn_pdrop", "embd_pdrop", "resid_pdrop", "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
    // Other names of n_embd, n_layer, n_head and n_positions.
    "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"};

constexpr absl::string_view kOfNeoX[] = {
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "hidden_act", "layer_norm_eps", "use_parallel_residual",
    "attention_bias", "rotary_pct", "rotary_emb_base", "rope_scaling", "rope_parameters",
    "original_max_position_embeddings", "attention_dropout", "hidden_dropout",
    // Refused where they differ from what the fields above say.
    "head_dim", "partial_rotary_factor", "rope_theta"};

constexpr absl::string_view kOfLlama[] = {"hidden_size",
                                          "num_hidden_layers",
                                          "num_attention_heads",
                                          "num_key_value_heads",
                                          "intermediate_size",
                                          "head_dim",
                                          "max_position_embeddings",
                                          "hidden_act",
                                          "rms_norm_eps",
                                          "rope_theta",
                                          "rope_scaling",
                                          "rope_parameters",
                                          "original_max_position_embeddings",
                                          "partial_rotary_factor",
                                          "attention_dropout",
                                          "attention_bias",
                                          "mlp_bias",
                                          "pretraining_tp",
                                          "rope_interleaved"};

constexpr absl::string_view kOfMistral[] = {"hidden_size",
                                            "num_hidden_layers",
                                            "num_attention_heads",
                                            "num_key_value_heads",
                                            "intermediate_size",
                                            "head_dim",
                                            "max_position_embeddings",
                                            "hidden_act",
                                            "rms_norm_eps",
                                            "rope_theta",
                                            "rope_scaling",
                                            "rope_parameters",
                                            "original_max_position_embeddings",
                                            "partial_rotary_factor",
                                            "attention_dropout"};

constexpr absl::string_view kOfQwen[] = {"hidden_size",
                                         "num_hidden_layers",
                                         "num_attention_heads",
                                         "num_key_value_heads",
                                         "intermediate_size",
                                         "head_dim",
                                         "max_position_embeddings",
                                         "hidden_act",
                                         "rms_norm_eps",
                                         "rope_theta",
                                         "rope_scaling",
                                         "rope_parameters",
                                         "original_max_position_embeddings",
                                         "partial_rotary_factor",
                                         "attention_dropout",
                                         "use_sliding_window",
                                         "max_window_layers",
                                         "use_mrope"};

constexpr absl::string_view kAttentionBias[] = {"attention_bias"};

constexpr absl::string_view kHarmless[] = {
    // For the library alone.
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path",
    "attn_implementation", "dtype", "gradient_checkpointing", "name_or_path", "output_attentions",
    "output_hidden_states", "return_dict", "torch_dtype", "torchscript", "transformers_version",
    "use_bfloat16", "use_cache", "use_return_dict",
    // Tokens that only the tokenizer and sampling know.
    "bos_token_id", "decoder_start_token_id", "pad_token_id", "prefix", "sep_token_id",
    "tokenizer_class",
    // For other tasks, and for the training of other models.
    "chunk_size_feed_forward", "classifier_dropout", "cross_attention_hidden_size",
    "finetuning_task", "id2label", "is_decoder", "label2id", "num_labels", "problem_type",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "task_specific_params", "tf_legacy_loss", "tie_encoder_decoder",
    // Older names and ways of computing the same numbers.
    "n_ctx", "reorder_and_upcast_attn",
    // Options of sampling, in older files; here sampling's options are those of the command line.
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id",
    "forced_eos_token_id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_return_sequences", "output_scores",
    "remove_invalid_values", "repetition_penalty", "return_dict_in_generate", "suppress_tokens",
    "temperature", "top_k", "top_p", "typical_p"};

bool Has(Names names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

Names FieldsOfEveryFamily() { return kOfEveryFamily; }

Names FieldsOf(Architecture architecture) {
  switch (architecture) {
    case Architecture::kGpt2:
      return kOfGpt2;
    case Architecture::kGptNeoX:
      return kOfNeoX;
    case Architecture::kLlama:
      return kOfLlama;
    case Architecture::kMistral:
    case Architecture::kMinistral:
      return kOfMistral;
    case Architecture::kQwen2:
    case Architecture::kQwen3:
      return kOfQwen;
  }
  return {};
}

Names HarmlessFields() { return kHarmless; }

bool IsKnownField(Architecture architecture, absl::string_view name) {
  const bool is_of_qwen3 = architecture == Architecture::kQwen3 && Has(kAttentionBias, name);
  return is_of_qwen3 || Has(kOfEveryFamily, name) || Has(FieldsOf(architecture), name) ||
         Has(kHarmless, name);
}

}  // namespace megascale::hugging_face
