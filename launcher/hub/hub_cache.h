// HubCache: one repository in the hub's cache, in the layout of huggingface_hub, so that each finds
// what the other has downloaded:
//
//   models--ORG--NAME/blobs/ETAG             the files' bytes; ETAG.incomplete while they arrive
//   models--ORG--NAME/refs/REVISION          holds the commit of a branch or a tag
//   models--ORG--NAME/snapshots/COMMIT/FILE  a link to the blob
//   .locks/models--ORG--NAME/ETAG.lock       is locked by who downloads the blob
#pragma once

#include <optional>
#include <string>

#include "launcher/hub/hub_name.h"

namespace nvllm::launcher {

class HubCache {
 public:
  // cache: the folder of all repositories.
  HubCache(const std::string& cache, const std::string& repository);

  const std::string& folder() const { return folder_; }
  std::string blob(const std::string& etag) const { return folder_ + "/blobs/" + etag; }
  std::string lock(const std::string& etag) const { return locks_ + '/' + etag + ".lock"; }
  std::string snapshot(const std::string& commit) const { return folder_ + "/snapshots/" + commit; }

  // The snapshot of a revision, which may be a branch, a tag or a commit; for the main branch also
  // the only existing one. nullopt: there is none.
  std::optional<std::string> find_snapshot(const std::string& revision) const;

  // Creates the folders; throws an Error if that is not permitted.
  void make_folders() const;
  // Adds a blob to a snapshot under the file's name.
  void link(const std::string& commit, const std::string& file, const std::string& etag) const;
  void set_revision(const std::string& revision, const std::string& commit) const;

 private:
  std::string folder_, locks_;
};

// The path in a snapshot for --model: the folder itself or a GGUF file in it. nullopt if a file of
// the model is missing; weights: if false, only files that describe the model are needed.
std::optional<std::string> model_in_snapshot(const std::string& snapshot, const HubName& name,
                                             bool weights);

}  // namespace nvllm::launcher
