// The cost of a placement, for searches in compiled code.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rules/span.hpp"
#include "rules/tables.hpp"
#include "simulator/simulation.hpp"
#include "simulator/throughput.hpp"

namespace placeit {

struct CostModel {
    const Tables* tables;   // outlives this
    bool capacity = false;  // seconds per request of the busiest resource (busy_seconds), not the makespan of one request
    std::vector<double> priority;  // [V], or empty for the b-level under each placement; as options, for makespans only
    Options options;
};

/// Values placements, one thread at a time.
class Evaluator {
public:
    explicit Evaluator(const CostModel& model)
        : model_(&model),
          simulation_(model.capacity ? nullptr : std::make_unique<Simulation>(*model.tables, 1)),
          busy_(model.capacity ? resources(*model.tables) : 0) {}

    /// Returns seconds, as Simulation::makespan or busy_seconds do; `place`: [V], device numbers within range.
    double operator()(Span<const std::int32_t> place) {
        if (model_->capacity) return busy_seconds(*model_->tables, place, busy_);
        return simulation_->makespan(place, model_->priority, model_->options);
    }

    const CostModel& model() const { return *model_; }
    /// Results for the last placement: with capacity the seconds of busy_seconds, else when ops started and finished.
    Span<const double> busy() const { return busy_; }
    const Simulation& simulation() const { return *simulation_; }

private:
    const CostModel* model_;
    std::unique_ptr<Simulation> simulation_;
    std::vector<double> busy_;
};

}  // namespace placeit
