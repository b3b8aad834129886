//! What is stored, and how it is spelled: typed records, their datastore keys and their JSON.
//!
//! Everything here is Calico's on the wire (calico-ipam.md sections 1.1 to 1.9), byte for byte as its newest release writes it, so that
//! Go peers can share a datastore with us. The store, the allocator and the overlay read and write through these types only.
//! All of it is pure: bytes in, values out.

mod handle_id;
mod key;

pub use handle_id::HandleId;
pub use key::{Key, KeyKind, Prefix, ResourceKind};
