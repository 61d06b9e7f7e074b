import pytest

from examples.export_models import main
from placeit.backends import load


def test_the_example_exports_what_it_is_asked_for(tmp_path, capsys):
    main([str(tmp_path / "models"), "resnet50", "--batch", "2"])
    path = tmp_path / "models" / "resnet50.onnx"
    assert capsys.readouterr().out.strip() == str(path)
    assert load(path).inputs[0].shape == (2, 3, 224, 224)


def test_the_example_says_which_models_there_are(tmp_path):
    with pytest.raises(SystemExit, match="no built-in model 'vgg'; there are resnet50, inception_v3, bert_base"):
        main([str(tmp_path), "vgg"])


def test_the_example_says_that_a_folder_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match="file"):
        main([str(tmp_path / "file" / "models"), "resnet50"])
