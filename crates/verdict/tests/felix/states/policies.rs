//! Policies of a random state.

use super::*;

impl States {
    pub(super) fn global_policy(&mut self, index: usize) -> Value {
        let mut spec = self.spec(None);
        let order = GLOBAL_ORDERS[self.0.below(GLOBAL_ORDERS.len())];
        spec.extend(order.map(|order| ("order".to_owned(), order.into())));
        if let Some(selector) = self.some(4, |it| it.0.pick(&NAMESPACE_SELECTORS)) {
            spec.insert("namespaceSelector".to_owned(), selector.into());
        }
        match self.0.below(10) {
            0..=2 => _ = spec.insert("applyOnForward".to_owned(), true.into()),
            3 => {
                spec.insert("applyOnForward".to_owned(), true.into());
                spec.insert("doNotTrack".to_owned(), true.into());
            }
            4 => {
                spec.insert("applyOnForward".to_owned(), true.into());
                spec.insert("preDNAT".to_owned(), true.into());
                spec.insert("types".to_owned(), json!(["Ingress"]));
                spec.shift_remove("egress");
            }
            _ => {}
        }
        object("GlobalNetworkPolicy", json!({"name": format!("global{index}")}), Value::Object(spec))
    }

    pub(super) fn policy(&mut self, index: usize) -> Value {
        let namespace = self.0.pick(&NAMESPACES);
        let mut spec = self.spec(Some(namespace));
        spec.insert("order".to_owned(), OWN_ORDERS[index % OWN_ORDERS.len()].into());
        let metadata = json!({"name": format!("own{index}"), "namespace": namespace});
        object("NetworkPolicy", metadata, Value::Object(spec))
    }

    fn spec(&mut self, namespace: Option<&str>) -> Map<String, Value> {
        let types = [&["Ingress", "Egress"][..], &["Ingress"], &["Egress"]][self.0.below(3)];
        let mut spec = Map::from_iter([
            ("selector".to_owned(), self.0.pick(&SELECTORS).into()),
            ("types".to_owned(), json!(types)),
        ]);
        if let Some(selector) = self.some(10, |it| it.0.pick(&ACCOUNT_SELECTORS)) {
            spec.insert("serviceAccountSelector".to_owned(), selector.into());
        }
        for (member, direction) in [("ingress", Direction::Ingress), ("egress", Direction::Egress)] {
            if types.iter().any(|it| it.eq_ignore_ascii_case(member)) {
                spec.insert(member.to_owned(), self.rules(direction, namespace).into());
            }
        }
        spec
    }

    /// Rules of a policy, or without a namespace also of a profile.
    pub(super) fn rules(&mut self, direction: Direction, namespace: Option<&str>) -> Vec<Value> {
        (0..self.0.below(4)).map(|_| self.rule(direction, namespace.unwrap_or(NAMESPACES[0]))).collect()
    }

    fn rule(&mut self, direction: Direction, namespace: &str) -> Value {
        let actions = ["Allow", "Allow", "Allow", "Deny", "Pass", "Log"];
        let mut rule = json!({"action": self.0.pick(&actions)});
        let family = Family::BOTH[self.0.below(2)];
        let (number, icmp) = match family {
            Family::V4 => (4, "ICMP"),
            Family::V6 => (6, "ICMPv6"),
        };
        let protocol = match self.0.below(9) {
            0..=2 => None,
            3..=5 => Some(json!(self.0.pick(&COUNTED))),
            6 | 7 => Some(json!(icmp)),
            _ => Some(json!(47)),
        };
        if self.0.once_in(8) {
            rule["ipVersion"] = number.into();
        }
        if self.0.once_in(10) {
            rule["notProtocol"] = self.0.pick(&COUNTED).into();
        }
        if protocol == Some(json!(icmp)) {
            for (member, one_in) in [("icmp", 2), ("notICMP", 3)] {
                if let Some(message) = self.some(one_in, Self::icmp) {
                    rule[member] = message;
                }
            }
        }
        let place = Place { direction, family };
        for side in ["source", "destination"] {
            let entity = self.entity(place, side, protocol.as_ref(), namespace);
            if !entity.is_empty() {
                rule[side] = Value::Object(entity);
            }
        }
        if let Some(protocol) = protocol {
            rule["protocol"] = protocol;
        }
        rule
    }

    fn icmp(&mut self) -> Value {
        let mut icmp = json!({"type": ([0, 8, 128][self.0.below(3)])});
        if self.0.once_in(2) {
            icmp["code"] = self.0.below(2).into();
        }
        icmp
    }

    fn entity(
        &mut self,
        place: Place,
        side: &str,
        protocol: Option<&Value>,
        namespace: &str,
    ) -> Map<String, Value> {
        let mut entity = Map::new();
        let is_peer = (side == "source") == (place.direction == Direction::Ingress);
        if is_peer && self.0.once_in(10) {
            entity.insert("services".to_owned(), json!({"name": "s", "namespace": namespace}));
            return entity;
        }
        let (nets, selectors) = if is_peer { (5, 3) } else { (12, 12) };
        entity.extend(self.some(nets, |it| ("nets".to_owned(), it.nets(place.family))));
        entity.extend(self.some(nets * 2, |it| ("notNets".to_owned(), it.nets(place.family))));
        for (member, one_in, among) in [
            ("selector", selectors, &SELECTORS[..]),
            ("notSelector", selectors * 2, &SELECTORS),
            ("namespaceSelector", selectors, &NAMESPACE_SELECTORS_OF_RULES),
        ] {
            entity.extend(self.some(one_in, |it| (member.to_owned(), it.0.pick(among).into())));
        }
        entity.extend(self.some(selectors * 4, |it| ("serviceAccounts".to_owned(), it.accounts())));
        let is_counted = protocol.and_then(Value::as_str).is_some_and(|name| COUNTED.contains(&name));
        if is_counted {
            let ports = if side == "source" { 12 } else { 3 };
            entity.extend(self.some(ports, |it| ("ports".to_owned(), it.ports())));
            entity.extend(self.some(ports * 4, |it| ("notPorts".to_owned(), it.ports())));
        }
        entity
    }

    fn nets(&mut self, family: Family) -> Value {
        let of_family: Vec<&str> = NETS.iter().filter(|(_, of)| *of == family).map(|(net, _)| *net).collect();
        (0..=self.0.below(2)).map(|_| self.0.pick(&of_family)).collect()
    }

    fn accounts(&mut self) -> Value {
        match self.0.below(3) {
            0 => json!({"names": [self.0.pick(&ACCOUNTS)]}),
            1 => json!({"selector": self.0.pick(&ACCOUNT_SELECTORS)}),
            _ => json!({"names": ACCOUNTS, "selector": self.0.pick(&ACCOUNT_SELECTORS)}),
        }
    }

    fn ports(&mut self) -> Value {
        (0..=self.0.below(3))
            .map(|_| match self.0.below(3) {
                0 => json!(PORTS[self.0.below(PORTS.len())]),
                1 => json!((["79:81", "53:90", "1:65535"][self.0.below(3)])),
                _ => json!(self.0.pick(&PORT_NAMES)),
            })
            .collect()
    }

    /// A NetworkPolicy of Kubernetes.
    pub(super) fn kubernetes_policy(&mut self, index: usize) -> Value {
        let namespace = self.0.pick(&NAMESPACES);
        let types = [&["Ingress", "Egress"][..], &["Ingress"], &["Egress"]][self.0.below(3)];
        let mut spec = json!({"podSelector": self.label_selector("a"), "policyTypes": types});
        for (member, peers) in [("ingress", "from"), ("egress", "to")] {
            if types.iter().any(|it| it.eq_ignore_ascii_case(member)) {
                spec[member] = (0..self.0.below(3)).map(|_| self.kubernetes_rule(peers)).collect();
            }
        }
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": format!("k{index}"), "namespace": namespace}, "spec": spec})
    }

    fn kubernetes_rule(&mut self, peers: &str) -> Value {
        let mut rule = json!({});
        if !self.0.once_in(4) {
            rule[peers] = (0..=self.0.below(2))
                .map(|_| match self.0.below(4) {
                    0 => json!({"podSelector": self.label_selector("a")}),
                    1 => json!({"namespaceSelector": self.label_selector("env")}),
                    2 => json!({"podSelector": self.label_selector("b"), "namespaceSelector": self.label_selector("env")}),
                    _ => json!({"ipBlock": {"cidr": "10.0.0.0/16", "except": ["10.0.1.0/24"]}}),
                })
                .collect();
        }
        if self.0.once_in(2) {
            rule["ports"] = (0..=self.0.below(1))
                .map(|_| match self.0.below(4) {
                    0 => json!({"protocol": self.0.pick(&COUNTED)}),
                    1 => json!({"port": self.0.pick(&PORT_NAMES), "protocol": self.0.pick(&COUNTED)}),
                    2 => json!({"port": 79, "endPort": 81}),
                    _ => json!({"port": PORTS[self.0.below(PORTS.len())], "protocol": self.0.pick(&COUNTED)}),
                })
                .collect();
        }
        rule
    }

    fn label_selector(&mut self, key: &str) -> Value {
        match self.0.below(4) {
            0 => json!({}),
            1 => json!({"matchLabels": {key: self.0.pick(&["x", "y"])}}),
            2 => json!({"matchExpressions": [{"key": key, "operator": "NotIn", "values": ["x"]}]}),
            _ => {
                json!({"matchExpressions": [{"key": key, "operator": self.0.pick(&["Exists", "DoesNotExist"])}]})
            }
        }
    }
}
