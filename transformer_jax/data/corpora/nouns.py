"""Nouns and adjectives of ``phrasebook``, as tables.

A noun is ``portuguese:gender:english``. A noun in two classes has two meanings; the classes share
no verb and no adjective, so the context always tells which one is meant.
"""

__all__ = ["ADJECTIVES", "CLASS_ADJECTIVES", "NOUNS"]


NOUNS = {
    "someone": "menino:m:boy, menina:f:girl, homem:m:man, mulher:f:woman, criança:f:child",
    "person": (
        "aluno:m:student, aluna:f:student, irmão:m:brother, irmã:f:sister, "
        "vizinho:m:neighbor, vizinha:f:neighbor, "
        "amigo:m:friend, amiga:f:friend, tio:m:uncle, tia:f:aunt, avô:m:grandfather, "
        "avó:f:grandmother, primo:m:cousin, prima:f:cousin, filho:m:son, filha:f:daughter, "
        "pai:m:father, mãe:f:mother"
    ),
    "trade": (
        "professor:m:teacher, professora:f:teacher, médico:m:doctor, médica:f:doctor, "
        "cozinheiro:m:cook, cozinheira:f:cook, advogado:m:lawyer, advogada:f:lawyer, "
        "engenheiro:m:engineer, engenheira:f:engineer, enfermeiro:m:nurse, enfermeira:f:nurse, "
        "pintor:m:painter, pintora:f:painter, escritor:m:writer, escritora:f:writer, "
        "cantor:m:singer, cantora:f:singer, padeiro:m:baker, padeira:f:baker, ator:m:actor, "
        "atriz:f:actress"
    ),
    "animal": (
        "gato:m:cat, cachorro:m:dog, cavalo:m:horse, pássaro:m:bird, vaca:f:cow, pato:m:duck, "
        "galinha:f:hen, ovelha:f:sheep, coelho:m:rabbit, macaco:m:monkey, urso:m:bear, "
        "leão:m:lion, tartaruga:f:turtle, raposa:f:fox, elefante:m:elephant"
    ),
    "fruit": (
        "maçã:f:apple, laranja:f:orange, banana:f:banana, uva:f:grape, pera:f:pear, "
        "limão:m:lemon, melancia:f:watermelon, abacaxi:m:pineapple, morango:m:strawberry, "
        "pêssego:m:peach, tomate:m:tomato, cebola:f:onion, cenoura:f:carrot, batata:f:potato"
    ),
    "dish": (
        "bolo:m:cake, sanduíche:m:sandwich, omelete:f:omelet, biscoito:m:cookie, torta:f:pie, "
        "salada:f:salad, sopa:f:soup, pizza:f:pizza"
    ),
    "food": (
        "pão:m:bread, arroz:m:rice, carne:f:meat, queijo:m:cheese, peixe:m:fish, "
        "frango:m:chicken, chocolate:m:chocolate, mel:m:honey, manteiga:f:butter"
    ),
    "drink": (
        "café:m:coffee, água:f:water, leite:m:milk, chá:m:tea, suco:m:juice, vinho:m:wine, "
        "cerveja:f:beer"
    ),
    "clothes": (
        "camisa:f:shirt, vestido:m:dress, casaco:m:coat, saia:f:skirt, chapéu:m:hat, meia:f:sock, "
        "sapato:m:shoe, bota:f:boot, luva:f:glove, gravata:f:tie, cinto:m:belt, blusa:f:blouse, "
        "jaqueta:f:jacket, lenço:m:scarf"
    ),
    "furniture": (
        "mesa:f:table, cadeira:f:chair, cama:f:bed, sofá:m:sofa, armário:m:closet, "
        "espelho:m:mirror, tapete:m:rug, lâmpada:f:lamp, prateleira:f:shelf, porta:f:door, "
        "janela:f:window, gaveta:f:drawer"
    ),
    "text": (
        "livro:m:book, jornal:m:newspaper, revista:f:magazine, romance:m:novel, poema:m:poem, "
        "mensagem:f:message, relatório:m:report, contrato:m:contract, artigo:m:article, "
        "bilhete:m:note, dicionário:m:dictionary, diário:m:diary"
    ),
    "device": (
        "computador:m:computer, telefone:m:telephone, rádio:m:radio, relógio:m:clock, "
        "câmera:f:camera, televisão:f:television, impressora:f:printer, geladeira:f:refrigerator, "
        "fogão:m:stove, ventilador:m:fan"
    ),
    "thing": (
        "chave:f:key, carteira:f:wallet, bolsa:f:bag, mochila:f:backpack, "
        "guarda-chuva:m:umbrella, anel:m:ring, caneta:f:pen, lápis:m:pencil, caixa:f:box, "
        "garrafa:f:bottle, copo:m:glass, faca:f:knife, garfo:m:fork, colher:f:spoon, "
        "brinquedo:m:toy, presente:m:gift, moeda:f:coin, mala:f:suitcase, cobertor:m:blanket, "
        "toalha:f:towel"
    ),
    "vehicle": (
        "carro:m:car, bicicleta:f:bicycle, moto:f:motorcycle, caminhão:m:truck, barco:m:boat, "
        "trator:m:tractor"
    ),
    "transport": (
        "ônibus:m:bus, trem:m:train, avião:m:plane, navio:m:ship, voo:m:flight, balsa:f:ferry"
    ),
    "building": (
        "escola:f:school, igreja:f:church, hotel:m:hotel, museu:m:museum, loja:f:store, "
        "restaurante:m:restaurant, biblioteca:f:library, teatro:m:theater, mercado:m:market, "
        "farmácia:f:pharmacy, padaria:f:bakery, castelo:m:castle, universidade:f:university, "
        "hospital:m:hospital, fábrica:f:factory"
    ),
    "place": (
        "aeroporto:m:airport, praça:f:square, ponte:f:bridge, parque:m:park, praia:f:beach, "
        "cidade:f:city, aldeia:f:village, ilha:f:island, montanha:f:mountain, floresta:f:forest, "
        "lago:m:lake, fazenda:f:farm"
    ),
    "room": (
        "jardim:m:garden, cozinha:f:kitchen, sala:f:living room, quarto:m:bedroom, "
        "garagem:f:garage, escritório:m:office, banheiro:m:bathroom, varanda:f:balcony"
    ),
    "show": "filme:m:movie, jogo:m:game, peça:f:play, concerto:m:concert, programa:m:program",
    "instrument": (
        "violão:m:guitar, piano:m:piano, flauta:f:flute, violino:m:violin, tambor:m:drum, "
        "trompete:m:trumpet"
    ),
    "sport": "futebol:m:soccer, tênis:m:tennis, basquete:m:basketball, xadrez:m:chess",
    "subject": (
        "inglês:m:English, português:m:Portuguese, matemática:f:mathematics, física:f:physics, "
        "química:f:chemistry, música:f:music"
    ),
    "flower": "flor:f:flower, orquídea:f:orchid, girassol:m:sunflower, tulipa:f:tulip",
    "tree": "árvore:f:tree, arbusto:m:bush, pinheiro:m:pine, carvalho:m:oak",
    "idea": (
        "problema:m:problem, pergunta:f:question, resposta:f:answer, ideia:f:idea, "
        "plano:m:plan, lição:f:lesson, exercício:m:exercise, palavra:f:word, erro:m:mistake, "
        "regra:f:rule"
    ),
    "toss": "bola:f:ball, pedra:f:stone",
    "photo": "foto:f:picture",
    "remedy": "remédio:m:medicine",
    # Two meanings each.
    "mango": "manga:f:mango",
    "sleeve": "manga:f:sleeve",
    "bank": "banco:m:bank",
    "bench": "banco:m:bench",
    "candle": "vela:f:candle",
    "sail": "vela:f:sail",
    "cable": "cabo:m:cable",
    "cape": "cabo:m:cape",
    "letter": "carta:f:letter",
    "card": "carta:f:card",
    "battery": "bateria:f:battery",
    "drums": "bateria:f:the drums",
    "plant": "planta:f:plant",
    "floorplan": "planta:f:blueprint",
    "plate": "prato:m:plate",
    "meal": "prato:m:dish",
    "leaf": "folha:f:leaf",
    "sheet": "folha:f:sheet",
    "hammock": "rede:f:hammock",
    "net": "rede:f:net",
}


# "ser" for permanent properties, "estar" for temporary ones.
ADJECTIVES = {
    "ser": (
        "alto:tall, jovem:young, simpático:nice, inteligente:intelligent, rico:rich, pobre:poor, "
        "famoso:famous, velho:old, gentil:kind, tímido:shy, corajoso:brave, preguiçoso:lazy, "
        "grande:big, pequeno:small, preto:black, branco:white, manso:tame, rápido:fast, "
        "doce:sweet, delicioso:delicious, vermelho:red, azul:blue, verde:green, amarelo:yellow, "
        "novo:new, caro:expensive, barato:cheap, elegante:elegant, bonito:beautiful, "
        "pesado:heavy, leve:light, moderno:modern, interessante:interesting, longo:long, "
        "importante:important, difícil:difficult, fácil:easy, útil:useful, lento:slow, "
        "antigo:ancient, tranquilo:quiet, chato:boring, engraçado:funny, simples:simple, bom:good, "
        "perigoso:dangerous, comprido:long, curto:short, elétrico:electric, rochoso:rocky, "
        "urgente:urgent, confortável:comfortable, internacional:international, "
        "público:public, perfumado:scented, triangular:triangular, tropical:tropical, "
        "detalhado:detailed, vegetariano:vegetarian, redondo:round, raro:rare"
    ),
    "estar": (
        "feliz:happy, cansado:tired, triste:sad, doente:sick, ocupado:busy, quente:hot, frio:cold, "
        "limpo:clean, sujo:dirty, molhado:wet, seco:dry, quebrado:broken, cheio:full, "
        "vazio:empty, maduro:ripe, podre:rotten, faminto:hungry, rasgado:torn, aceso:lit, "
        "marcado:marked, descarregado:dead, afinado:tuned"
    ),
}


CLASS_ADJECTIVES = {
    "someone": "alto jovem simpático inteligente rico pobre gentil tímido corajoso feliz cansado "
    "triste doente ocupado",
    "person": "alto jovem simpático inteligente rico pobre famoso gentil tímido corajoso "
    "preguiçoso feliz cansado triste doente ocupado",
    "trade": "alto jovem simpático inteligente rico famoso gentil velho feliz cansado ocupado",
    "animal": "grande pequeno preto branco manso rápido velho faminto cansado doente bonito",
    "fruit": "doce delicioso verde grande pequeno barato maduro podre",
    "dish": "delicioso doce grande pequeno barato caro quente frio",
    "food": "delicioso barato caro bom quente frio",
    "drink": "doce delicioso bom caro barato quente frio",
    "clothes": "vermelho azul verde amarelo preto branco novo velho caro barato elegante bonito "
    "limpo sujo molhado seco",
    "furniture": "novo velho grande pequeno caro barato bonito pesado moderno quebrado limpo sujo",
    "text": "interessante longo importante novo velho difícil fácil útil chato engraçado",
    "device": "novo velho caro barato moderno útil pequeno pesado quebrado",
    "thing": "novo velho grande pequeno bonito vermelho azul preto caro barato leve pesado",
    "vehicle": "rápido lento novo velho azul vermelho branco amarelo caro sujo limpo",
    "transport": "rápido lento novo moderno cheio vazio",
    "building": "grande pequeno moderno famoso antigo bonito novo cheio vazio",
    "place": "grande pequeno famoso bonito tranquilo perigoso",
    "room": "grande pequeno moderno novo bonito tranquilo limpo sujo vazio",
    "show": "interessante longo chato engraçado famoso bom",
    "instrument": "novo velho caro antigo bonito afinado",
    "flower": "bonito pequeno raro vermelho amarelo branco",
    "tree": "alto verde seco antigo bonito",
    "idea": "difícil fácil importante simples interessante",
    "toss": "pequeno grande pesado leve redondo",
    "photo": "bonito antigo engraçado",
    "mango": "doce delicioso maduro",
    "sleeve": "comprido curto rasgado",
    "bank": "internacional famoso público",
    "bench": "confortável pesado quebrado",
    "candle": "perfumado aceso",
    "sail": "triangular molhado",
    "cable": "elétrico novo",
    "cape": "rochoso perigoso",
    "letter": "longo urgente",
    "card": "marcado",
    "battery": "descarregado barato",
    "plant": "tropical verde seco",
    "floorplan": "detalhado",
    "plate": "limpo sujo branco",
    "meal": "delicioso vegetariano",
}
