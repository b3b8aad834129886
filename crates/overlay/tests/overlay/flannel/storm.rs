//! Many leases: storms, and what they cost.
