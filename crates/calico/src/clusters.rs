//! Clients for the Kubernetes API servers that network configurations name, kept open from request
//! to request.

use std::cell::RefCell;
use std::rc::Rc;

use russet_cni_spec::CniError;
use russet_kube::{Client, Kubernetes, Overrides, Source};

use crate::conf::{KubernetesSettings, plaintext};

/// API servers, keyed by their connection settings. Clones share them.
#[derive(Clone, Default)]
pub struct Clusters {
    fixed: Option<Rc<dyn Kubernetes>>,
    own: Option<OwnCluster>,
    open: Rc<RefCell<Vec<Open>>>,
}

type Open = (KubernetesSettings, Rc<dyn Kubernetes>);

/// The cluster of the agent, which has its own connection to it.
#[derive(Clone)]
struct OwnCluster {
    kubernetes: Rc<dyn Kubernetes>,
    is_own: Rc<dyn Fn(&KubernetesSettings) -> bool>,
}

/// A node normally has one cluster; each edit of the configuration leaves one client behind.
const OPEN_MAX: usize = 4;

// === impl Clusters ===

impl Clusters {
    /// Always returns `kubernetes`, whatever configurations say.
    pub fn fixed(kubernetes: Rc<dyn Kubernetes>) -> Self {
        Self { fixed: Some(kubernetes), ..Self::default() }
    }

    /// Uses `kubernetes` for settings that lead to the agent's own cluster, as `is_own` decides.
    pub fn with_own(kubernetes: Rc<dyn Kubernetes>, is_own: Rc<dyn Fn(&KubernetesSettings) -> bool>) -> Self {
        Self { own: Some(OwnCluster { kubernetes, is_own }), ..Self::default() }
    }

    /// The API server that `settings` name.
    pub(crate) fn open(&self, settings: &KubernetesSettings) -> Result<Rc<dyn Kubernetes>, CniError> {
        if let Some(fixed) = &self.fixed {
            return Ok(Rc::clone(fixed));
        }
        if let Some(own) = self.own.as_ref().filter(|own| (own.is_own)(settings)) {
            return Ok(Rc::clone(&own.kubernetes));
        }
        let mut open = self.open.borrow_mut();
        if let Some((_, known)) = open.iter().find(|(known, _)| known == settings) {
            return Ok(Rc::clone(known));
        }
        let client = Client::new(settings.source()).map_err(|error| {
            CniError::invalid_config("Kubernetes cannot be reached as `kubernetes` and `policy` say", error)
        })?;
        if client.plaintext_credentials() && !settings.allow_plaintext {
            return Err(plaintext("the token for Kubernetes", &client.server()));
        }
        let client: Rc<dyn Kubernetes> = Rc::new(client);
        if open.len() == OPEN_MAX {
            open.remove(0);
        }
        open.push((settings.clone(), Rc::clone(&client)));
        Ok(client)
    }
}

// === impl KubernetesSettings ===

impl KubernetesSettings {
    /// A kubeconfig, or what the configuration itself names; without either, the service account of the
    /// pod that this process may run in.
    pub fn source(&self) -> Source {
        let overrides = Overrides {
            server: self.api_root.clone(),
            token: self.token.clone(),
            certificate_authority: self.certificate_authority.clone(),
            client_certificate: self.client_certificate.clone(),
            client_key: self.client_key.clone(),
        };
        match (&self.kubeconfig, &self.api_root) {
            (Some(path), _) => Source::Kubeconfig { path: path.clone(), overrides },
            (None, Some(_)) => Source::Direct { overrides },
            (None, None) => Source::InCluster { overrides },
        }
    }
}

#[cfg(test)]
mod tests {
    use russet_kube::Secret;

    use super::*;

    #[test]
    fn a_token_does_not_go_to_another_machine_over_http_unless_that_is_allowed() {
        let settings = |server: &str, allow_plaintext: bool| KubernetesSettings {
            api_root: Some(server.to_owned()),
            token: Some(Secret::new("opensesame")),
            allow_plaintext,
            ..KubernetesSettings::default()
        };
        let clusters = Clusters::default();
        let refused = clusters.open(&settings("http://10.96.0.1:8080", false)).err().unwrap();
        assert!(refused.msg.contains("http://10.96.0.1:8080 in clear text"), "{refused}");
        assert!(refused.details.contains("allow_plaintext_credentials"), "{refused}");
        for (server, allowed) in
            [("http://10.96.0.1:8080", true), ("http://127.0.0.1:8080", false), ("http://[::1]:8080", false)]
        {
            assert!(clusters.open(&settings(server, allowed)).is_ok(), "{server}");
        }
        let anonymous = KubernetesSettings { token: None, ..settings("http://10.96.0.1:8080", false) };
        assert!(clusters.open(&anonymous).is_ok(), "nothing secret is sent");
    }
}
