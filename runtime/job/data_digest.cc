#include "runtime/job/data_digest.h"

#include <google/protobuf/util/message_differencer.h>

#include <string>

#include "runtime/base/checksum.h"

namespace megascale::job {

checkpoint::v1::DataFingerprint DigestOf(const checkpoint::v1::DataFingerprint& data) {
  checkpoint::v1::DataFingerprint digest = data;
  digest.clear_file_sha256();
  if (data.file_sha256().empty() || !data.files_sha256().empty()) return digest;
  std::string list;
  for (const std::string& sha256 : data.file_sha256()) {
    list += sha256;
    list += '\n';
  }
  digest.set_files_sha256(base::Sha256Hex(list));
  digest.set_num_files(data.file_sha256_size());
  return digest;
}

checkpoint::v1::DataFingerprint ListOf(const checkpoint::v1::DataFingerprint& data) {
  checkpoint::v1::DataFingerprint list = data;
  list.clear_files_sha256();
  list.clear_num_files();
  return list;
}

bool AreSameData(const checkpoint::v1::DataFingerprint& a,
                 const checkpoint::v1::DataFingerprint& b) {
  return google::protobuf::util::MessageDifferencer::Equals(DigestOf(a), DigestOf(b));
}

}  // namespace megascale::job
