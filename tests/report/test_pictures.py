from flwr_asyncdrop.report.pictures import legend_columns


def test_long_labels_get_a_line_of_the_legend_each():
    assert legend_columns(["fedavg", "layerwise-asyncdrop"]) == 2
    assert legend_columns(["fedavg", "asyncdrop-plus,drop-rate=0.45"]) == 1
