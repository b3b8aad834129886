//! The table of Russet's plugins. What the small executable, the agent, `russet install`, the lint
//! and the journal know about a plugin follows from its line here; its code is found by name in the
//! crate `plugins`, which the small executable does not contain.

/// One plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plugin {
    /// The name of its executable and `type` in configurations.
    pub name: &'static str,
    /// Its place in a configuration.
    pub kind: PluginKind,
    /// What it works with.
    pub needs: Needs,
}

/// The place of a plugin in a network configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PluginKind {
    /// The first plugin of a chain. It provides the interface, itself or by a delegate.
    Main,
    /// `ipam` of another plugin. It is called in the middle of that plugin's request and must not
    /// wait for any other.
    Ipam,
    /// Works on the interface that an earlier plugin of the chain made.
    Meta,
}

/// What a plugin works with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// The node's own store.
    Store,
    /// The datastore that its configuration names, like Calico's plugins.
    Datastore,
    /// Only files and the kernel of its machine, like the reference plugins.
    LocalFiles,
    /// A server of its own on the node, which may be the stock one: a request is never sent to the
    /// agent's socket, and the server orders the requests for a container.
    Server,
    /// Only the container's namespace, in which it leaves nothing to clean up.
    Nothing,
}

use Needs::{Datastore, LocalFiles, Nothing, Server, Store};
use PluginKind::{Ipam, Main, Meta};

/// All plugins, in the order in which they are listed to users.
pub const PLUGINS: [Plugin; 10] = [
    Plugin { name: "russet", kind: Main, needs: Store },
    Plugin { name: "loopback", kind: Main, needs: Nothing },
    Plugin { name: "calico", kind: Main, needs: Datastore },
    Plugin { name: "calico-ipam", kind: Ipam, needs: Datastore },
    Plugin { name: "host-local", kind: Ipam, needs: LocalFiles },
    Plugin { name: "bridge", kind: Main, needs: LocalFiles },
    Plugin { name: "flannel", kind: Main, needs: LocalFiles },
    Plugin { name: "portmap", kind: Meta, needs: LocalFiles },
    Plugin { name: "bandwidth", kind: Meta, needs: LocalFiles },
    Plugin { name: "openshift-sdn", kind: Main, needs: Server },
];

/// The plugin called `name`.
pub fn find(name: &str) -> Option<&'static Plugin> {
    PLUGINS.iter().find(|plugin| plugin.name == name)
}

/// The names of all plugins, for messages.
pub fn names() -> String {
    PLUGINS.map(|plugin| plugin.name).join(", ")
}

// === impl Plugin ===

impl Plugin {
    /// Whether its requests for a container wait for those of other plugins for that container.
    pub fn takes_container_lock(&self) -> bool {
        self.kind != Ipam
    }

    /// Whether its ADD makes an interface in this process or in that of a delegate.
    pub fn creates_interfaces(&self) -> bool {
        self.kind == Main && !matches!(self.needs, Server | Nothing)
    }

    /// Whether it leaves state that only its own DEL removes. IPAM plugins leave some, too, but
    /// their DEL is called by the plugin that called their ADD.
    pub fn needs_own_del(&self) -> bool {
        self.kind != Ipam && self.needs != Nothing
    }

    /// Whether it is about this machine alone, so that another plugin can call it in its own process.
    pub fn is_local(&self) -> bool {
        matches!(self.needs, LocalFiles | Server)
    }

    /// Whether its answers, STATUS included, are the same with and without an agent.
    pub fn works_without_agent(&self) -> bool {
        matches!(self.needs, Datastore | LocalFiles | Server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn which(predicate: impl Fn(&Plugin) -> bool) -> Vec<&'static str> {
        PLUGINS.iter().filter(|plugin| predicate(plugin)).map(|plugin| plugin.name).collect()
    }

    #[test]
    fn a_plugin_is_found_by_its_name_alone() {
        for plugin in &PLUGINS {
            assert_eq!(find(plugin.name), Some(plugin), "two lines have one name");
        }
        assert_eq!((find("macvlan"), find("")), (None, None));
    }

    #[test]
    fn properties_follow_from_kind_and_needs() {
        assert_eq!(which(Plugin::creates_interfaces), ["russet", "calico", "bridge", "flannel"]);
        assert_eq!(which(|plugin| !plugin.takes_container_lock()), ["calico-ipam", "host-local"]);
        assert_eq!(which(|plugin| !plugin.needs_own_del()), ["loopback", "calico-ipam", "host-local"]);
        assert_eq!(which(|plugin| !plugin.works_without_agent()), ["russet", "loopback"]);
    }
}
