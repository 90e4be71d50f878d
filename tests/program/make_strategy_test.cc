// SPDX-License-Identifier: Apache-2.0

#include "tutti/program/make_strategy.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tutti/strategy/default_strategy.h"

#include "tests/contract/strategy_contract.h"
#include "tests/support/expect_error.h"

namespace tutti::make_strategy_test {

// A modifiable argument vector like that of main().
class Arguments {
 public:
  Arguments(std::initializer_list<std::string> flags) : texts_(flags) {
    texts_.insert(texts_.begin(), "program");
    for (std::string& text : texts_) pointers_.push_back(text.data());
    pointers_.push_back(nullptr);
    count = static_cast<int>(texts_.size());
  }

  char** values() { return pointers_.data(); }

  std::vector<std::string> left() const { return {pointers_.begin(), pointers_.begin() + count}; }
  bool ends_with_null() const { return pointers_[static_cast<size_t>(count)] == nullptr; }

  int count = 0;

 private:
  std::vector<std::string> texts_;
  std::vector<char*> pointers_;
};

StrategyConfig parse(std::initializer_list<std::string> flags) {
  Arguments arguments(flags);
  return parse_strategy_flags(arguments.count, arguments.values());
}

// A file that lives as long as the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    std::string name = (std::filesystem::temp_directory_path() / "tutti_config_XXXXXX").string();
    close(mkstemp(name.data()));
    path_ = name;
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(MakeStrategy, MakesEachKindFromAStruct) {
  const Strategy mirrored = make_strategy(
      StrategyConfig{.devices = {"CPU:0", "CPU:1", "CPU:2"}, .threads_per_replica = 2});
  EXPECT_EQ(mirrored.extended().describe(), "MirroredStrategy(CPU:0, CPU:1, CPU:2)");
  EXPECT_EQ(mirrored.run([] { return at::get_num_threads(); })[1], 2);

  const Strategy one =
      make_strategy(StrategyConfig{.strategy = "one_device", .devices = {"CPU:4"}});
  EXPECT_EQ(one.extended().describe(), "OneDeviceStrategy(CPU:4)");
  const Strategy first = make_strategy(StrategyConfig{.strategy = "one_device"});
  EXPECT_EQ(first.extended().describe(), "OneDeviceStrategy(CPU:0)");

  const Strategy fallback = make_strategy(StrategyConfig{.strategy = "default"});
  EXPECT_EQ(&fallback.extended(), default_strategy_extended().get());
}

TEST(MakeStrategy, ChoosesBetweenTypesInOneExpression) {
  for (const bool many : {false, true}) {
    const Strategy strategy = many ? make_strategy(StrategyConfig{.devices = {"CPU:0", "CPU:1"}})
                                   : make_strategy(StrategyConfig{.strategy = "one_device"});
    EXPECT_EQ(strategy.num_replicas_in_sync(), many ? 2 : 1);
  }
}

TEST(MakeStrategy, RefusesAConfigThatMakesNoSense) {
  EXPECT_TUTTI_ERROR(make_strategy(StrategyConfig{.strategy = "tpu"}), ErrorCode::kInvalidArgument,
                     "make_strategy", "unknown strategy \"tpu\"",
                     "mirrored, central_storage, one_device, default");
  EXPECT_TUTTI_ERROR(
      make_strategy(StrategyConfig{.strategy = "one_device", .devices = {"CPU:0", "CPU:1"}}),
      ErrorCode::kInvalidArgument, "one_device takes one device, not 2", "mirrored");
  EXPECT_TUTTI_ERROR(make_strategy(StrategyConfig{.strategy = "default", .devices = {"CPU:0"}}),
                     ErrorCode::kInvalidArgument, "takes no devices");
  EXPECT_TUTTI_ERROR(make_strategy(StrategyConfig{.devices = {"CPU:99"}}), ErrorCode::kNotFound,
                     "CPU:99");
  EXPECT_TUTTI_ERROR(make_strategy(StrategyConfig{.devices = {"CPU:0"}, .threads_per_replica = -1}),
                     ErrorCode::kInvalidArgument, "threads_per_replica is -1");
}

TEST(StrategyConfig, ReadsJson) {
  EXPECT_EQ(StrategyConfig::from_json("{}"), StrategyConfig{});
  const StrategyConfig expected{.strategy = "one_device",
                                .devices = {"CPU:1"},
                                .threads_per_replica = 3,
                                .concurrent_replicas = 1};
  EXPECT_EQ(StrategyConfig::from_json(R"({"strategy": "one_device", "devices": ["CPU:1"],
                                          "threads_per_replica": 3, "concurrent_replicas": 1})"),
            expected);
  EXPECT_EQ(StrategyConfig::from_json(R"({"devices": []})").devices.size(), 0U);
}

TEST(MakeStrategy, MakesCentralStorageFromFlagsAndJson) {
  Arguments arguments(
      {"--strategy=central_storage", "--devices=CPU:1,CPU:2", "--parameter-device=CPU:2"});
  const Strategy strategy = make_strategy(arguments.count, arguments.values());
  EXPECT_EQ(strategy.extended().describe(), "CentralStorageStrategy(CPU:1, CPU:2)");
  EXPECT_EQ(strategy.extended().parameter_devices()[0].short_name(), "CPU:2");
  const StrategyConfig config = StrategyConfig::from_json(
      R"({"strategy": "central_storage", "devices": ["CPU:4"], "parameter_device": "CPU:5"})");
  EXPECT_EQ(make_strategy(config).extended().parameter_devices()[0].short_name(), "CPU:5");
  EXPECT_TUTTI_ERROR(make_strategy(StrategyConfig{.parameter_device = "CPU:0"}),
                     ErrorCode::kInvalidArgument, "parameter_device is \"CPU:0\"",
                     "mirrored has no parameter device", "central_storage");
  EXPECT_TUTTI_ERROR(StrategyConfig::from_json(R"({"parameter_device": 1})"),
                     ErrorCode::kInvalidArgument, "\"parameter_device\"", "a string");
}

TEST(StrategyConfig, RefusesBadJson) {
  const auto refuse = [](const char* text) { return StrategyConfig::from_json(text); };
  EXPECT_TUTTI_ERROR(refuse("{\"strategy\": "), ErrorCode::kInvalidArgument, "make_strategy",
                     "not as expected");
  EXPECT_TUTTI_ERROR(refuse(""), ErrorCode::kInvalidArgument, "make_strategy");
  EXPECT_TUTTI_ERROR(refuse("[1, 2]"), ErrorCode::kInvalidArgument,
                     "the configuration is not a JSON object");
  EXPECT_TUTTI_ERROR(refuse(R"({"device": ["CPU:0"]})"), ErrorCode::kInvalidArgument,
                     "unknown key \"device\"",
                     "strategy, devices, parameter_device, threads_per_replica");
}

TEST(StrategyConfig, NamesTheKeyWhoseTypeIsWrong) {
  const auto refuse = [](const char* text) { return StrategyConfig::from_json(text); };
  EXPECT_TUTTI_ERROR(refuse(R"({"strategy": 3})"), ErrorCode::kInvalidArgument, "\"strategy\"");
  EXPECT_TUTTI_ERROR(refuse(R"({"devices": "CPU:0"})"), ErrorCode::kInvalidArgument, "\"devices\"");
  EXPECT_TUTTI_ERROR(refuse(R"({"devices": [1]})"), ErrorCode::kInvalidArgument, "\"devices\"");
  EXPECT_TUTTI_ERROR(refuse(R"({"threads_per_replica": "2"})"), ErrorCode::kInvalidArgument,
                     "\"threads_per_replica\"");
  EXPECT_TUTTI_ERROR(refuse(R"({"threads_per_replica": true})"), ErrorCode::kInvalidArgument,
                     "\"threads_per_replica\"");
  EXPECT_TUTTI_ERROR(refuse(R"({"concurrent_replicas": 1.5})"), ErrorCode::kInvalidArgument,
                     "\"concurrent_replicas\"");
  EXPECT_TUTTI_ERROR(refuse(R"({"concurrent_replicas": 5000000000})"), ErrorCode::kInvalidArgument,
                     "\"concurrent_replicas\"");
}

TEST(StrategyFlags, BothFormsAreRead) {
  const StrategyConfig expected{.strategy = "mirrored",
                                .devices = {"CPU:0", "CPU:1"},
                                .threads_per_replica = 2,
                                .concurrent_replicas = 1};
  EXPECT_EQ(parse({"--strategy=mirrored", "--devices=CPU:0,CPU:1", "--threads-per-replica=2",
                   "--concurrent-replicas=1"}),
            expected);
  EXPECT_EQ(parse({"--strategy", "mirrored", "--devices", "CPU:0,CPU:1", "--threads-per-replica",
                   "2", "--concurrent-replicas", "1"}),
            expected);
  EXPECT_EQ(parse({}), StrategyConfig{});
}

TEST(StrategyFlags, SetTimeoutsAndCertificatesOfWorkers) {
  const StrategyConfig expected{.strategy = "multi_worker_mirrored",
                                .join_timeout = 60,
                                .communication_timeout = 20,
                                .tls_ca_file = "ca.pem",
                                .tls_certificate_file = "a.pem",
                                .tls_key_file = "a.key"};
  EXPECT_EQ(
      parse({"--strategy=multi_worker_mirrored", "--join-timeout=60", "--communication-timeout=20",
             "--tls-ca-file=ca.pem", "--tls-certificate-file", "a.pem", "--tls-key-file=a.key"}),
      expected);
  EXPECT_EQ(StrategyConfig::from_json(
                R"({"strategy": "multi_worker_mirrored", "join_timeout": 60,
                    "communication_timeout": 20, "tls_ca_file": "ca.pem",
                    "tls_certificate_file": "a.pem", "tls_key_file": "a.key"})"),
            expected);
  EXPECT_TUTTI_ERROR(make_strategy(StrategyConfig{.join_timeout = 60}), ErrorCode::kInvalidArgument,
                     "for multi_worker_mirrored, not for mirrored");
}

TEST(StrategyFlags, OnlyOurFlagsAreTakenOut) {
  Arguments arguments({"--epochs=3", "--strategy", "one_device", "input.txt", "--devices=CPU:2",
                       "--device=x", "--strategy-x", "-v"});
  const StrategyConfig config = parse_strategy_flags(arguments.count, arguments.values());
  EXPECT_EQ(config.strategy, "one_device");
  EXPECT_EQ(config.devices, std::vector<std::string>{"CPU:2"});
  EXPECT_EQ(arguments.left(), (std::vector<std::string>{"program", "--epochs=3", "input.txt",
                                                        "--device=x", "--strategy-x", "-v"}));
  EXPECT_TRUE(arguments.ends_with_null());
}

TEST(StrategyFlags, BadFlagsAreErrorsThatNameThem) {
  EXPECT_TUTTI_ERROR(parse({"--strategy=mirrored", "--strategy=default"}),
                     ErrorCode::kInvalidArgument, "--strategy is given twice");
  EXPECT_TUTTI_ERROR(parse({"--devices=CPU:0", "--devices", "CPU:1"}), ErrorCode::kInvalidArgument,
                     "--devices is given twice");
  EXPECT_TUTTI_ERROR(parse({"--devices"}), ErrorCode::kInvalidArgument, "--devices needs a value",
                     "--strategy=NAME");
  for (const char* bad : {"x", "-1", "2x", "", "1.5", "99999999999999999999"}) {
    EXPECT_TUTTI_ERROR(parse({std::string("--threads-per-replica=") + bad}),
                       ErrorCode::kInvalidArgument, "--threads-per-replica is",
                       "\"" + std::string(bad) + "\"");
  }
  EXPECT_TUTTI_ERROR(parse({"--concurrent-replicas", "many"}), ErrorCode::kInvalidArgument,
                     "--concurrent-replicas is \"many\"");
}

TEST(StrategyFlags, AFlagWinsOverTheFile) {
  const TemporaryFile file(
      R"({"strategy": "mirrored", "devices": ["CPU:0", "CPU:1"], "threads_per_replica": 2})");
  const StrategyConfig from_file = parse({"--strategy-config=" + file.path()});
  EXPECT_EQ(from_file, (StrategyConfig{.devices = {"CPU:0", "CPU:1"}, .threads_per_replica = 2}));
  const StrategyConfig both =
      parse({"--devices=CPU:5", "--strategy-config", file.path(), "--threads-per-replica=1"});
  EXPECT_EQ(both, (StrategyConfig{.devices = {"CPU:5"}, .threads_per_replica = 1}));
}

TEST(StrategyFlags, AMissingOrBadFileIsAnErrorThatNamesIt) {
  EXPECT_TUTTI_ERROR(parse({"--strategy-config=/no/such/file.json"}), ErrorCode::kNotFound,
                     "/no/such/file.json", "--strategy-config");
  EXPECT_TUTTI_ERROR(parse({"--strategy-config=/tmp"}), ErrorCode::kNotFound, "/tmp");
  const TemporaryFile file("{broken");
  EXPECT_TUTTI_ERROR(parse({"--strategy-config=" + file.path()}), ErrorCode::kInvalidArgument,
                     file.path());
}

TEST(StrategyFlags, MakeTheStrategy) {
  Arguments arguments({"--devices=CPU:0,CPU:3", "rest"});
  const Strategy strategy = make_strategy(arguments.count, arguments.values());
  EXPECT_EQ(strategy.extended().describe(), "MirroredStrategy(CPU:0, CPU:3)");
  EXPECT_EQ(arguments.left(), (std::vector<std::string>{"program", "rest"}));
}

TEST(StrategyFlags, HelpNamesEveryFlag) {
  const std::string help = strategy_flags_help();
  for (const char* flag :
       {"--strategy=", "--devices=", "--parameter-device=", "--threads-per-replica=",
        "--concurrent-replicas=", "--strategy-config="}) {
    EXPECT_NE(help.find(flag), std::string::npos) << flag;
  }
  EXPECT_EQ(help.back(), '\n');
}

}  // namespace tutti::make_strategy_test
