/* What the mock's options allow of an instance. */
#ifndef OCT_BACKENDS_MOCK_LIMITS_H
#define OCT_BACKENDS_MOCK_LIMITS_H

#include "backends/mock/mock.h"

/* FALSE with *error (CONFIG) when the layout is illegal, or beyond the devices and pools. */
gboolean oct_mock_config_check(const oct_mock_options *options, const oct_instance_config *config,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;
oct_capabilities oct_mock_capabilities(const oct_mock_options *options,
                                       const oct_instance_config *config);

#endif
