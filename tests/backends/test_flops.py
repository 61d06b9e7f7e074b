import numpy as np
import openvino
import pytest
from openvino import opset13 as op

from placeit.backends.openvino.flops import bounded_shape, node_flops


def tensor(*shape, dtype=np.float32):
    return op.parameter(list(shape), dtype)


def floats(*shape):
    return op.constant(np.ones(shape, np.float32))


def ints(*values):
    return op.constant(np.array(values, np.int64))


ONE, TWO, NONE = [1, 1], [2, 2], [0, 0]
LENGTHS = ints(10, 10)

CASES = {
    # two operations for each multiply-add
    "convolution": (op.convolution(tensor(2, 3, 10, 10), floats(8, 3, 3, 3), ONE, NONE, NONE, ONE), 2 * (2 * 8 * 64) * 27),
    "strided convolution": (op.convolution(tensor(1, 3, 9, 9), floats(4, 3, 1, 1), TWO, NONE, NONE, ONE), 2 * (4 * 25) * 3),
    "depth-wise convolution": (
        op.group_convolution(tensor(1, 6, 10, 10), floats(6, 1, 1, 3, 3), ONE, NONE, NONE, ONE),
        2 * (6 * 64) * 9,
    ),
    "transposed convolution": (
        op.convolution_backprop_data(tensor(1, 4, 5, 5), floats(4, 2, 3, 3), ONE, None, NONE, NONE, ONE),
        2 * (4 * 25) * (2 * 9),
    ),
    "matrix product": (op.matmul(tensor(5, 2, 3), tensor(3, 7), False, False), 2 * 5 * 2 * 7 * 3),
    "matrix product, both transposed": (op.matmul(tensor(3, 2), tensor(7, 3), True, True), 2 * 2 * 7 * 3),
    "vector times matrix": (op.matmul(tensor(3), tensor(3, 7), True, False), 2 * 7 * 3),
    "einsum": (op.einsum([tensor(4, 2, 3), tensor(4, 3, 5)], "bij,bjk->bik"), 2 * 4 * 2 * 5 * 3),
    "einsum with an ellipsis": (op.einsum([tensor(6, 4, 2), tensor(2, 3)], "...j,jk->...k"), 2 * 6 * 4 * 3 * 2),
    "attention": (
        op.scaled_dot_product_attention(tensor(1, 2, 5, 8), tensor(1, 2, 6, 8), tensor(1, 2, 6, 4)),
        2 * (2 * 5 * 6 * 8) + 7 * (2 * 5 * 6) + 2 * (2 * 5 * 6 * 4),
    ),
    "recurrent sequence": (
        op.lstm_sequence(
            tensor(2, 10, 4), tensor(2, 1, 3), tensor(2, 1, 3), LENGTHS, floats(1, 12, 4), floats(1, 12, 3), floats(1, 12), 3,
            "forward",
        ),
        2 * (2 * 10) * 12 * (4 + 3),
    ),
    "recurrent cell": (
        op.lstm_cell(tensor(2, 4), tensor(2, 3), tensor(2, 3), floats(12, 4), floats(12, 3), floats(12), 3),
        2 * 2 * 12 * (4 + 3),
    ),
    # steps of element-wise work
    "average pooling": (op.avg_pool(tensor(1, 2, 8, 8), TWO, NONE, NONE, TWO, False), 2 * 16 * 4),
    "mean": (op.reduce_mean(tensor(2, 3, 4), ints(1), False), 24),
    "addition": (op.add(tensor(2, 3), tensor(4, 1, 3)), 24),
    "activation": (op.relu(tensor(2, 3)), 6),
    "softmax": (op.softmax(tensor(2, 3), 1), 5 * 6),
    # data that only moves
    "gather": (op.gather(floats(9, 5), tensor(4, dtype=np.int64), ints(0)), 0),
    "concatenation": (op.concat([tensor(2), tensor(3)], 0), 0),
    "transposition": (op.transpose(tensor(2, 3), ints(1, 0)), 0),
    "input": (tensor(5), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operations_follow_from_the_shapes(name):
    node, expected = CASES[name]
    assert node_flops(node) == expected


def test_a_loop_counts_its_body_once_per_iteration_and_a_branch_its_dearer_side():
    x, rounds = tensor(4), 7
    inner = tensor(4)
    body = openvino.Model([op.exp(op.relu(inner)), op.constant(True)], [inner], "body")
    loop = op.loop(op.constant(rounds), op.constant(True))
    loop.set_function(body)
    loop.set_special_body_ports([-1, 1])
    loop.set_merged_input(inner, x.output(0), body.get_results()[0].output(0))
    loop.get_iter_value(body.get_results()[0].output(0), -1)
    loop.validate_and_infer_types()
    assert node_flops(loop) == rounds * (4 + 4)

    cheap, dear = tensor(4), tensor(4)
    branch = op.if_op(tensor(dtype=bool))
    sides = [
        openvino.Model([op.relu(cheap)], [cheap], "cheap"),
        openvino.Model([op.relu(op.relu(op.relu(dear)))], [dear], "dear"),
    ]
    branch.set_then_body(sides[0])
    branch.set_else_body(sides[1])
    branch.set_input(x.output(0), cheap, dear)
    branch.set_output(sides[0].get_results()[0], sides[1].get_results()[0])
    assert node_flops(branch) == 12


def test_open_sizes_count_with_their_upper_bound():
    some = openvino.PartialShape([2, openvino.Dimension(1, 9)])
    assert bounded_shape(some) == (2, 9)
    assert bounded_shape(openvino.PartialShape([2, -1])) is None
    assert bounded_shape(openvino.PartialShape.dynamic()) is None
    assert node_flops(op.relu(op.parameter(some, np.float32))) == 18
    assert node_flops(op.relu(op.parameter(openvino.PartialShape([-1]), np.float32))) == 0
