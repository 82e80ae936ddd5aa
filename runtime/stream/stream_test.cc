#include "runtime/stream/stream.h"

#include <gtest/gtest.h>

#include <pthread.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "runtime/stream/host_stream.h"

namespace megascale::stream {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(30);

std::unique_ptr<Stream> MakeStream(std::string name) {
  return HostStream::Create(std::move(name)).value();
}

TEST(Stream, RunsTasksInOrderOnItsOwnNamedThread) {
  std::vector<int> order;
  std::string name;
  std::thread::id thread;
  {
    const auto stream = MakeStream("receive-activation");
    stream->Enqueue([&](Stream&) {
      char buffer[16] = {};
      pthread_getname_np(pthread_self(), buffer, sizeof(buffer));
      name = buffer;
      thread = std::this_thread::get_id();
    });
    for (int i = 0; i < 1000; ++i) {
      stream->Enqueue([&order, &thread, i](Stream&) {
        if (std::this_thread::get_id() == thread) order.push_back(i);
      });
    }
  }
  EXPECT_EQ(name, "receive-activat");
  EXPECT_NE(thread, std::this_thread::get_id());
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
}

TEST(Stream, KeepsOrderWhenItsQueueGrowsWhileInUse) {
  std::vector<int> order;
  HostEvent gate;
  const auto opener = MakeStream("opener");
  const auto stream = MakeStream("stream");
  for (int i = 0; i < 50; ++i) stream->Enqueue([&order, i](Stream&) { order.push_back(i); });
  EXPECT_TRUE(stream->Synchronize().ok());  // The queue now begins in the middle of its storage.
  gate.Wait(*stream, 1);
  for (int i = 50; i < 500; ++i) stream->Enqueue([&order, i](Stream&) { order.push_back(i); });
  stream->Reserve(2000);
  gate.Record(*opener, 1);
  EXPECT_TRUE(stream->Synchronize().ok());
  ASSERT_EQ(order.size(), 500u);
  for (int i = 0; i < 500; ++i) EXPECT_EQ(order[i], i);
}

TEST(Stream, DestructorRunsWhatIsQueuedAndWhatThatEnqueues) {
  std::atomic<int> count = 0;
  {
    const auto stream = MakeStream("stream");
    Stream* self = stream.get();
    stream->Enqueue([&count, self](Stream&) {
      self->Enqueue([&count](Stream&) { ++count; });
      ++count;
    });
  }
  EXPECT_EQ(count, 2);
}

TEST(Stream, FreesATaskWhenItHasRun) {
  const auto stream = MakeStream("stream");
  auto value = std::make_shared<int>(1);
  stream->Enqueue([value](Stream&) {});
  EXPECT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(value.use_count(), 1);
}

TEST(Stream, RunAndWaitReturnsAfterItsTaskHasRunBehindTheQueue) {
  const auto stream = MakeStream("compute");
  std::thread::id own;
  stream->Enqueue([&](Stream&) { own = std::this_thread::get_id(); });
  for (int i = 1; i <= 1000; ++i) {
    int value = 0;  // Ordered by the call alone.
    std::thread::id thread;
    stream->Enqueue([&](Stream&) { value = 1; });
    stream->RunAndWait([&] {
      value += value;
      thread = std::this_thread::get_id();
    });
    ASSERT_EQ(value, 2);
    ASSERT_EQ(thread, own);
  }
}

TEST(Event, HoldsOneStreamUntilTheOtherHasArrived) {
  const auto producer = MakeStream("producer");
  const auto consumer = MakeStream("consumer");
  HostEvent produced;
  int value = 0;  // Ordered by the event alone.
  for (int generation = 1; generation <= 1000; ++generation) {
    HostEvent consumed;
    int seen = 0;
    produced.Wait(*consumer, generation);
    consumer->Enqueue([&](Stream&) { seen = value; });
    consumed.Record(*consumer, 1);
    producer->Enqueue([&](Stream&) { value = generation; });
    produced.Record(*producer, generation);
    consumed.Wait(*producer, 1);
    EXPECT_TRUE(producer->Synchronize().ok());
    EXPECT_TRUE(consumer->Synchronize().ok());
    ASSERT_EQ(seen, generation);
  }
}

TEST(Event, AWaitForALaterGenerationIsNotEndedByAnEarlierOne) {
  const auto producer = MakeStream("producer");
  const auto consumer = MakeStream("consumer");
  HostEvent produced;
  std::atomic<bool> passed = false;
  produced.Record(*producer, 1);
  EXPECT_TRUE(producer->Synchronize().ok());
  produced.Wait(*consumer, 2);
  consumer->Enqueue([&](Stream&) { passed = true; });
  producer->Enqueue([&](Stream&) { EXPECT_FALSE(passed); });
  produced.Record(*producer, 2);
  EXPECT_TRUE(consumer->Synchronize().ok());
  EXPECT_TRUE(passed);
  produced.Wait(*consumer, 1);  // An earlier one is over.
  EXPECT_TRUE(consumer->Synchronize().ok());
  EXPECT_TRUE(producer->Synchronize().ok());
}

TEST(Event, ReleaseEndsWaitsPresentAndFuture) {
  const auto stream = MakeStream("stream");
  HostEvent never;
  absl::Notification begun;
  stream->Enqueue([&](Stream&) { begun.Notify(); });
  never.Wait(*stream, 1);
  ASSERT_TRUE(begun.WaitForNotificationWithTimeout(kDeadline));
  never.Release();
  never.Wait(*stream, 2);
  EXPECT_TRUE(stream->Synchronize().ok());
}

}  // namespace
}  // namespace megascale::stream
