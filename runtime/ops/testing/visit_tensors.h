// Visits the tensors of an operator's arguments, for code that moves them to other addresses.
#pragma once

#include "runtime/ops/ops.h"

namespace megascale::ops {

// Calls visit(tensors...) once, with references to all matrices and vectors of `a`.
template <typename Visit>
void VisitTensors(MatMulArgs& a, const Visit& visit) {
  visit(a.a, a.b, a.c, a.bias, a.activated, a.activation_in, a.d_activation_in, a.d_bias);
}
template <typename Visit>
void VisitTensors(NormArgs& a, const Visit& visit) {
  visit(a.x, a.delta, a.sum, a.weight, a.bias, a.out, a.mean, a.rstd);
}
template <typename Visit>
void VisitTensors(NormBackwardArgs& a, const Visit& visit) {
  visit(a.x, a.weight, a.mean, a.rstd, a.d_out, a.d_x, a.d_weight, a.d_bias);
}
template <typename Visit>
void VisitTensors(AttentionArgs& a, const Visit& visit) {
  visit(a.q, a.k, a.v, a.out, a.log_sum_exp, a.document_begins);
}
template <typename Visit>
void VisitTensors(AttentionBackwardArgs& a, const Visit& visit) {
  visit(a.forward.q, a.forward.k, a.forward.v, a.forward.out, a.forward.log_sum_exp,
        a.forward.document_begins, a.d_out, a.d_q, a.d_k, a.d_v);
}
template <typename Visit>
void VisitTensors(CachedAttentionArgs& a, const Visit& visit) {
  visit(a.places, a.q, a.k, a.v, a.cached_k, a.cached_v, a.out);
}
template <typename Visit>
void VisitTensors(RotaryArgs& a, const Visit& visit) {
  visit(a.x, a.places);
}
template <typename Visit>
void VisitTensors(ActivationArgs& a, const Visit& visit) {
  visit(a.in, a.out);
}
template <typename Visit>
void VisitTensors(ActivationBackwardArgs& a, const Visit& visit) {
  visit(a.in, a.d_out, a.d_in);
}
template <typename Visit>
void VisitTensors(EmbeddingArgs& a, const Visit& visit) {
  visit(a.tokens, a.token_weight, a.position_weight, a.out, a.places, a.document_begins);
}
template <typename Visit>
void VisitTensors(EmbeddingBackwardArgs& a, const Visit& visit) {
  visit(a.tokens, a.d_out, a.d_token_weight, a.d_position_weight, a.document_begins);
}
template <typename Visit>
void VisitTensors(LogitStatisticsArgs& a, const Visit& visit) {
  visit(a.logits, a.targets, a.statistics);
}
template <typename Visit>
void VisitTensors(CrossEntropyArgs& a, const Visit& visit) {
  visit(a.logits, a.targets, a.loss_sum, a.statistics);
}
template <typename Visit>
void VisitTensors(AdamWArgs& a, const Visit& visit) {
  visit(a.master, a.exp_avg, a.exp_avg_sq, a.grad, a.compute_copy, a.update, a.step_numbers);
}
template <typename Visit>
void VisitTensors(TrustStepArgs& a, const Visit& visit) {
  visit(a.master, a.update, a.trust_sums, a.step_numbers);
}
template <typename Visit>
void VisitTensors(CombineNormsArgs& a, const Visit& visit) {
  visit(a.ranks, a.sums, a.step_numbers);
}

}  // namespace megascale::ops
