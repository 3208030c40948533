package conformance

// keptHistory is a history that broke a provider once. It is a case like any other.
type keptHistory struct {
	// id, name and rule are those of the case, text is what parseHistory reads.
	id, name, rule, text string
}

var keptHistories = []keptHistory{
	{
		id: "HI-01", name: "histories/throttled-after-a-restart", rule: "A cloud that asks to be left alone is left alone by all that a start begins.",
		text: "0s create r-1; 45s restart 40s; 28s fault throttled 3; 21s delete-machine r-1",
	},
	{
		id: "HI-02", name: "histories/throttled-while-a-step-waits", rule: "A cloud that asks to be left alone is left alone by steps that are under way.",
		text: "0s create r-1; 0s fault slow 5; 0s fault throttled 5; 11s fault throttled 8",
	},
}

// historyCases makes cases of the histories that are kept.
func historyCases() (all []testCase) {
	for _, kept := range keptHistories {
		h, err := parseHistory(kept.text)
		if err != nil {
			panic("kept history " + kept.id + ": " + err.Error())
		}

		all = append(all, testCase{
			id: kept.id, name: kept.name, rule: kept.rule, needs: h.needs(),
			uses: []means{simulatedOmni, simulatedCloud, simulatedMachines, ownProcess, cloudView, cloudHand, bootCount, fakeClock},
			run:  func(e *env) { e.playHistory(h) },
		})
	}

	return all
}
