// Report: figures as a table for eyes and as JSON for programs. Pure.
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "cli/bench/figures.h"

namespace takt::cli {

/// One measured load: where, how much, what came out.
struct LoadPoint {
    std::string url;
    std::string load;          ///< e.g. "8 at once", "4 /s poisson"
    int round = 1;
    double offered = 0;        ///< concurrency, or arrivals a second
    Targets targets;
    PointFigures figures;
};

struct InsertPoint {
    std::string url;
    Targets targets;
    InsertFigures figures;
};

std::string load_table(const std::vector<LoadPoint>& points);
std::string insert_table(const std::vector<InsertPoint>& points);
boost::json::object load_json(const LoadPoint& point);
boost::json::object insert_json(const InsertPoint& point);

}  // namespace takt::cli
