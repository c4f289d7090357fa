#pragma once

#include "router/control/step_predictor.h"
