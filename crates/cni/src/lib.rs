//! The Container Network Interface, versions 0.1.0 to 1.1.0: the documents of both sides.
//!
//! A plugin starts with [`plugin::prepare`] and ends with [`plugin::finish`]; a runtime starts with
//! a [`ConfigList`] and decodes a [`CniResult`] or a [`CniError`]. [`relay`] is the complete small
//! executable that runtimes run: it passes the request to the agent. Nothing here is asynchronous,
//! and nothing uses the kernel's network.
//!
//! Whole numbers are exact up to 64 bits; only larger ones, which no peer writes, become floating
//! point.

// It decodes bytes of other programs: none of them may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod args;
pub mod base64;
mod config;
mod env;
mod error;
mod field;
mod list;
mod overrides;
pub mod plugin;
pub mod relay;
mod result;
mod runtime_config;
pub mod table;
mod version;

pub use args::{CniArgs, PodArgs};
pub use config::{ATTACHMENT_KEYS, NetworkConfig};
pub use env::{Call, Env, Target, process_vars};
pub use error::{CniError, code};
pub use field::FieldError;
pub use list::{ConfigError, ConfigList, PluginConfig};
pub use overrides::Overrides;
pub use plugin::{Outcome, Prepared, Request};
pub use result::{CniResult, Dns, Interface, IpConfig, ResultError, Route};
pub use runtime_config::{Bandwidth, PortMapping, RuntimeConfig};
pub use version::{UnsupportedVersion, Verb, Version, VersionSyntax, select};
