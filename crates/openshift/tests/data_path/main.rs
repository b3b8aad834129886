//! OpenShift's tenants in the real kernel: nodes and pods in network namespaces of their own (cni-runtime.md sections 4.4, 4.5 and A.3).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are tests, too")]

mod egress;
mod guards;
mod isolation;
mod isolation_load;
mod lab;
mod life;
mod upgrade;
