// SPDX-License-Identifier: Apache-2.0
//
// A user's program, built against an installed Tutti by tools/check_install.sh.

#include <iostream>

#include <tutti/files/tf_record_file.h>
#include <tutti/tutti.h>

int main() {
  tutti::MirroredStrategy strategy({"CPU:0", "CPU:1"});
  auto ids = strategy.run([] { return tutti::get_replica_context()->replica_id_in_sync_group(); });
  if (ids.size() != 2 || ids[0] != 0 || ids[1] != 1) {
    std::cout << "consumer: wrong replica ids\n";
    return 1;
  }
  // Compression needs zlib, which a static library cannot bring along.
  tutti::data::TfRecordWriter writer("/dev/null", {.compression = tutti::data::Compression::kGzip});
  writer.write("record");
  writer.close();
  std::cout << "consumer ok\n";
}
